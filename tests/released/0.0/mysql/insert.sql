-- For MySQL 8 and MariaDB 10.11. The server's clock decides what is due (W7); `now` is not used.
-- Plain INSERT: the right to INSERT is enough, and IGNORE would turn a value that is cut off into a warning.
-- Error 1062 means that the id exists already; only the statement is undone and the transaction goes on (W5).
-- Bytes come as hexadecimal text (key_hash_hex, payload_hex): in a literal they would be read as utf8mb4.
-- The list of values begins and ends with a parameter: only then do the drivers' executemany send many rows at once.
INSERT INTO postroom_outbox (
    id, stream, lane, key_hash, type, topic, `key`, aggregate_type, aggregate_id,
    payload, payload_bytes, content_type, headers, correlation_id, causation_path,
    schema_version, kseq, occurred_at, created_at, available_at, stage, next_attempt_at, size
) VALUES (
    :id, :stream, :lane, UNHEX(:key_hash_hex), :type, :topic, :key, :aggregate_type, :aggregate_id,
    :payload, UNHEX(:payload_hex), :content_type, :headers, :correlation_id, :causation_path,
    :schema_version, :kseq, DATE'1970-01-01' + INTERVAL :occurred_us MICROSECOND, UTC_TIMESTAMP(6),
    DATE'1970-01-01' + INTERVAL :available_us MICROSECOND,
    IF(DATE'1970-01-01' + INTERVAL :available_us MICROSECOND > UTC_TIMESTAMP(6), 'waiting', 'ready'),
    IF(DATE'1970-01-01' + INTERVAL :available_us MICROSECOND > UTC_TIMESTAMP(6),
       DATE'1970-01-01' + INTERVAL :available_us MICROSECOND, NULL),
    :size
)
