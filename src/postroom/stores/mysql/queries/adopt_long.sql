-- Rows that do not fit: names and keys have up to 255 bytes, ids up to 100.
SELECT id FROM {table}
WHERE OCTET_LENGTH(CONVERT(event_id USING utf8mb4)) > 100 OR OCTET_LENGTH(CONVERT(event_type USING utf8mb4)) > 255
   OR OCTET_LENGTH(CONVERT(aggregate_type USING utf8mb4)) > 255
   OR OCTET_LENGTH(CONVERT(aggregate_id USING utf8mb4)) > 255
ORDER BY id LIMIT 1
