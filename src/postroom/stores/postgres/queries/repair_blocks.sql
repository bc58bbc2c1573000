SELECT b.key_hash FROM postroom_block AS b
WHERE b.stream = :stream AND b.lane = ANY (CAST(:lanes AS smallint[])) AND NOT EXISTS (
    SELECT 1 FROM postroom_outbox AS h WHERE h.seq = b.barrier AND h.stage IN ('ready', 'waiting'))
LIMIT :limit
