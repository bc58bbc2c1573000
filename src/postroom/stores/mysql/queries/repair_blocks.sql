SELECT b.key_hash FROM postroom_block AS b
LEFT JOIN postroom_outbox AS h ON h.seq = b.barrier AND h.stage IN ('ready', 'waiting')
WHERE b.stream = :stream AND b.lane IN :lanes AND h.seq IS NULL
LIMIT :limit
