UPDATE postroom_outbox
SET state = 'pending', stage = 'ready', attempts = 0, settled_at = NULL, next_attempt_at = NULL,
    expires_at = NULL, receipt = NULL
WHERE seq = ANY (CAST(:seqs AS bigint[])) AND stage = 'over'
