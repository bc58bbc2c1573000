-- The stager moves them when they are due: at once.
UPDATE postroom_outbox AS o
SET next_attempt_at = clock_timestamp(), history = coalesce(n.history, o.history)
FROM unnest(CAST(:seqs AS bigint[]), CAST(:histories AS text[])) AS n (seq, history)
WHERE o.seq = n.seq
