SELECT b.key_hash FROM postroom_block AS b
WHERE b.stream = :stream AND b.lane IN (SELECT value FROM json_each(:lanes)) AND NOT EXISTS (
    SELECT 1 FROM postroom_outbox AS h
    WHERE h.seq = b.barrier AND h.stage IN ('ready', 'waiting'))
LIMIT :limit
