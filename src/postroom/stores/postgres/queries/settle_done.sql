UPDATE postroom_outbox
SET state = 'done', stage = 'over', settled_at = clock_timestamp(),
    next_attempt_at = NULL, lease_owner = NULL, lease_until = NULL
WHERE seq = ANY (CAST(:seqs AS bigint[])) AND stage <> 'over'
