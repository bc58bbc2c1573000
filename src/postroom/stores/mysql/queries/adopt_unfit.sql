-- The first row that the outbox cannot hold, and why: names and keys have up to 255 bytes, ids up to 100.
SELECT id, why FROM (
    SELECT t.id, CASE
        WHEN t.id < 1 THEN 'its id is below 1'
        WHEN t.event_id IS NULL THEN 'event_id is NULL'
        WHEN t.event_type IS NULL THEN 'event_type is NULL'
        WHEN t.payload IS NULL THEN 'payload is NULL'
        WHEN OCTET_LENGTH(CONVERT(t.event_id USING utf8mb4)) > 100 THEN 'event_id has more than 100 bytes'
        WHEN OCTET_LENGTH(CONVERT(t.event_type USING utf8mb4)) > 255 THEN 'event_type has more than 255 bytes'
        WHEN OCTET_LENGTH(CONVERT(t.aggregate_type USING utf8mb4)) > 255 THEN 'aggregate_type has more than 255 bytes'
        WHEN OCTET_LENGTH(CONVERT(t.aggregate_id USING utf8mb4)) > 255 THEN 'aggregate_id has more than 255 bytes'
        END AS why
    FROM {table} AS t WHERE {status} IN :moving) AS looked
WHERE why IS NOT NULL ORDER BY id LIMIT 1
