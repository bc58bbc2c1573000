-- Before a barrier is lowered: the failed event that was the barrier waits behind the lower one. Else its key would be
-- open when that one ends, and overtake it.
UPDATE postroom_outbox AS o SET stage = 'parked'
FROM postroom_outbox AS f
JOIN postroom_block AS b ON b.stream = f.stream AND b.lane = f.lane AND b.key_hash = f.key_hash
WHERE f.seq = ANY (CAST(:seqs AS bigint[])) AND f.stage = 'waiting' AND f.key IS NOT NULL AND f.seq < b.barrier
  AND o.seq = b.barrier AND o.stage = 'waiting'
