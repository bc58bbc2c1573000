-- Proposed as expired by a relay, but not over by this clock.
SELECT o.seq, o.id FROM postroom_outbox AS o
JOIN unnest(CAST(:seqs AS bigint[]), CAST(:ids AS text[])) AS n (seq, id) ON o.seq = n.seq AND o.id = n.id
WHERE o.stream = :stream AND o.lane = ANY (CAST(:lanes AS smallint[]))
  AND o.stage <> 'over' AND (o.expires_at IS NULL OR o.expires_at > clock_timestamp())
