-- The next rows to move, locked. A row whose event_id is in the outbox already stays where it is.
SELECT t.id FROM {table} AS t
WHERE t.id > :after AND (:sent OR t.status <> 'sent')
  AND NOT EXISTS (SELECT 1 FROM postroom_outbox AS n WHERE n.id = CAST(CONVERT(t.event_id USING utf8mb4) AS BINARY))
ORDER BY t.id LIMIT :step FOR UPDATE
