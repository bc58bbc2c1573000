-- Before a barrier is lowered: the failed event that was the barrier waits behind the lower one. Else its key would be
-- open when that one ends, and overtake it.
UPDATE postroom_outbox AS o SET stage = 'parked'
FROM unnest(CAST(:seqs AS bigint[]), CAST(:ids AS text[])) AS n (seq, id)
JOIN postroom_outbox AS f ON f.seq = n.seq AND f.id = n.id
JOIN postroom_block AS b ON b.stream = f.stream AND b.lane = f.lane AND b.key_hash = f.key_hash
WHERE f.stream = :stream AND f.lane = ANY (CAST(:lanes AS smallint[])) AND f.stage = 'waiting' AND f.key IS NOT NULL
  AND f.seq < b.barrier AND o.seq = b.barrier AND o.key_hash = b.key_hash AND o.stage = 'waiting'
