UPDATE postroom_outbox AS o
SET state = 'failed', stage = 'waiting', attempts = n.attempts, last_error = n.error,
    history = coalesce(n.history, o.history),
    next_attempt_at = clock_timestamp() + n.delay * interval '1 second', lease_owner = NULL, lease_until = NULL
FROM unnest(
    CAST(:seqs AS bigint[]), CAST(:ids AS text[]), CAST(:attempts AS integer[]), CAST(:delays AS float8[]),
    CAST(:errors AS text[]), CAST(:histories AS text[])
) AS n (seq, id, attempts, delay, error, history)
WHERE o.seq = n.seq AND o.id = n.id AND o.stream = :stream AND o.lane = ANY (CAST(:lanes AS smallint[]))
  AND o.stage <> 'over'
