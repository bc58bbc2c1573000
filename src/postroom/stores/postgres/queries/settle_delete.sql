DELETE FROM postroom_outbox AS o
USING unnest(CAST(:seqs AS bigint[]), CAST(:ids AS text[])) AS n (seq, id)
WHERE o.seq = n.seq AND o.id = n.id AND o.stream = :stream AND o.lane = ANY (CAST(:lanes AS smallint[]))
  AND o.stage <> 'over'
RETURNING o.seq, o.id
