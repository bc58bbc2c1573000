-- The block of a key, if the event at its barrier has ended, is gone or parked.
SELECT b.barrier FROM postroom_block AS b
LEFT JOIN postroom_outbox AS h ON h.seq = b.barrier AND h.stage IN ('ready', 'waiting')
WHERE b.stream = :stream AND b.key_hash = :key_hash AND h.seq IS NULL
