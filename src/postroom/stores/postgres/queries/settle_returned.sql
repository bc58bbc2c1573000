UPDATE postroom_outbox
SET state = 'pending', attempts = greatest(attempts - 1, 0), lease_owner = NULL, lease_until = NULL
WHERE seq = ANY (CAST(:seqs AS bigint[])) AND state = 'processing'
