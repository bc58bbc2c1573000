SELECT DISTINCT stream FROM postroom_outbox WHERE id = ANY (CAST(:ids AS text[])) ORDER BY stream
