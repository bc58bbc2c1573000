UPDATE postroom_outbox
SET state = 'dead', stage = 'over', settled_at = clock_timestamp(), last_error = :reason,
    next_attempt_at = NULL, lease_owner = NULL, lease_until = NULL
WHERE seq = ANY (CAST(:seqs AS bigint[])) AND stage <> 'over'
