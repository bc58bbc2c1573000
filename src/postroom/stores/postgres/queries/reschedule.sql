-- They stay 'waiting', also if the time has passed: only the stager of the lane's owner makes events ready (R6).
UPDATE postroom_outbox AS o
SET available_at = timestamptz 'epoch' + CAST(:at AS bigint) * interval '1 microsecond',
    next_attempt_at = timestamptz 'epoch' + CAST(:at AS bigint) * interval '1 microsecond', history = coalesce(n.history, o.history)
FROM unnest(CAST(:seqs AS bigint[]), CAST(:histories AS text[])) AS n (seq, history)
WHERE o.seq = n.seq
