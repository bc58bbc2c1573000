-- Before a barrier is lowered: the failed event that was the barrier waits behind the lower one. Else its key would be
-- open when that one ends, and overtake it.
UPDATE postroom_outbox SET stage = 'parked'
WHERE stage = 'waiting' AND seq IN (
    SELECT b.barrier FROM postroom_outbox AS f
    JOIN postroom_block AS b ON b.stream = f.stream AND b.key_hash = f.key_hash
    WHERE f.seq IN (SELECT value FROM json_each(:seqs)) AND f.stage = 'waiting' AND f.key IS NOT NULL
      AND f.seq < b.barrier)
