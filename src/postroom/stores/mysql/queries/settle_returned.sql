UPDATE postroom_outbox FORCE INDEX (PRIMARY)
SET state = 'pending', attempts = GREATEST(attempts - 1, 0), lease_owner = NULL, lease_until = NULL
WHERE seq IN :seqs AND (seq, id) IN :names AND stream = :stream AND lane IN :lanes
  AND state = 'processing'
