UPDATE postroom_outbox AS o
SET state = 'pending', stage = 'ready', attempts = 0, settled_at = NULL, next_attempt_at = NULL,
    expires_at = NULL, receipt = NULL, history = n.history
FROM unnest(CAST(:seqs AS bigint[]), CAST(:histories AS text[])) AS n (seq, history)
WHERE o.seq = n.seq AND o.stage = 'over'
