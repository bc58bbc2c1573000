-- Only behind a block that is still there: a row parked without one would wait for ever.
UPDATE postroom_outbox AS o SET stage = 'parked'
FROM unnest(CAST(:seqs AS bigint[]), CAST(:ids AS text[])) AS n (seq, id)
WHERE o.seq = n.seq AND o.id = n.id AND o.stream = :stream AND o.lane = ANY (CAST(:lanes AS smallint[]))
  AND o.stage = 'ready' AND o.state <> 'processing'
  AND EXISTS (
    SELECT 1 FROM postroom_block AS b
    WHERE b.stream = o.stream AND b.lane = o.lane AND b.key_hash = o.key_hash AND b.barrier < o.seq)
