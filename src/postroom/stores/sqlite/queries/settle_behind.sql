-- Before a barrier is lowered: the failed event that was the barrier waits behind the lower one. Else its key would be
-- open when that one ends, and overtake it.
UPDATE postroom_outbox SET stage = 'parked'
WHERE stage = 'waiting' AND seq IN (
    SELECT b.barrier FROM json_each(:names) AS n CROSS JOIN postroom_outbox AS f
    JOIN postroom_block AS b ON b.stream = f.stream AND b.key_hash = f.key_hash
    WHERE f.seq = CAST(n.key AS INTEGER) AND n.value IN (f.id, hex(f.id))
      AND +f.stream = :stream AND +f.lane IN (SELECT value FROM json_each(:lanes))
      AND f.stage = 'waiting' AND f.key IS NOT NULL AND f.seq < b.barrier)
