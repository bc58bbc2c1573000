-- Before a barrier is lowered: the failed event that was the barrier waits behind the lower one. Else its key would be
-- open when that one ends, and overtake it.
UPDATE postroom_outbox AS o FORCE INDEX (PRIMARY)
JOIN (
    SELECT b.barrier FROM postroom_outbox AS f FORCE INDEX (PRIMARY)
    JOIN postroom_block AS b ON b.stream = f.stream AND b.key_hash = f.key_hash
    WHERE f.seq IN :seqs AND (f.seq, f.id) IN :names AND f.stream = :stream AND f.lane IN :lanes
      AND f.stage = 'waiting' AND f.`key` IS NOT NULL AND f.seq < b.barrier
) AS n ON n.barrier = o.seq
SET o.stage = 'parked' WHERE o.stage = 'waiting'
