UPDATE postroom_outbox AS o
SET state = 'dead', stage = 'over', settled_at = clock_timestamp(), attempts = n.attempts, last_error = n.error,
    history = coalesce(n.history, o.history), next_attempt_at = NULL, lease_owner = NULL, lease_until = NULL
FROM unnest(
    CAST(:seqs AS bigint[]), CAST(:ids AS text[]), CAST(:attempts AS integer[]), CAST(:errors AS text[]),
    CAST(:histories AS text[])
) AS n (seq, id, attempts, error, history)
WHERE o.seq = n.seq AND o.id = n.id AND o.stream = :stream AND o.lane = ANY (CAST(:lanes AS smallint[]))
  AND o.stage <> 'over'
