UPDATE postroom_outbox AS o
SET state = 'cancelled', stage = 'over', settled_at = clock_timestamp(), next_attempt_at = NULL, history = coalesce(n.history, o.history)
FROM unnest(CAST(:seqs AS bigint[]), CAST(:histories AS text[])) AS n (seq, history)
WHERE o.seq = n.seq
