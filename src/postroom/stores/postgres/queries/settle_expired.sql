UPDATE postroom_outbox AS o
SET state = 'expired', stage = 'over', settled_at = clock_timestamp(),
    next_attempt_at = NULL, lease_owner = NULL, lease_until = NULL, history = n.history
FROM unnest(CAST(:seqs AS bigint[]), CAST(:ids AS text[]), CAST(:histories AS text[])) AS n (seq, id, history)
WHERE o.seq = n.seq AND o.id = n.id AND o.stream = :stream AND o.lane = ANY (CAST(:lanes AS smallint[]))
  AND o.stage <> 'over' AND o.expires_at <= clock_timestamp()
