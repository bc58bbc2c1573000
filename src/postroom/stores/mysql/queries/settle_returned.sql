UPDATE postroom_outbox FORCE INDEX (PRIMARY)
SET state = 'pending', attempts = GREATEST(attempts - 1, 0), lease_owner = NULL, lease_until = NULL
WHERE seq IN :seqs AND state = 'processing'
