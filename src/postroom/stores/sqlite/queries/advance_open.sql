-- The block of a key, if the event at its barrier has ended, is gone or parked.
SELECT b.barrier FROM postroom_block AS b
WHERE b.stream = :stream AND b.key_hash = :key_hash AND NOT EXISTS (
    SELECT 1 FROM postroom_outbox AS h
    WHERE h.seq = b.barrier AND h.stage IN ('ready', 'waiting'))
