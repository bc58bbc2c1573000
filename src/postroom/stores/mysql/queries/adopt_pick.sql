-- The next rows to move, locked. A row whose status is not to be moved, or whose event_id is in the outbox already stays where it is.
SELECT t.id FROM {table} AS t
WHERE t.id > :after AND {status} IN :moving
  AND NOT EXISTS (SELECT 1 FROM postroom_outbox AS n WHERE n.id = CAST(CONVERT(t.event_id USING utf8mb4) AS BINARY))
ORDER BY t.id LIMIT :step FOR UPDATE
