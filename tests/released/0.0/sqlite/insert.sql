-- SQLite has no clock but the host's: `now` is a parameter, taken once for the whole call (W7).
-- It begins with INSERT, never WITH: only then does sqlite3 in legacy mode open a transaction.
-- No conflict target and no RETURNING: the right to INSERT is enough (W5).
INSERT INTO postroom_outbox (
    id, stream, lane, key_hash, type, topic, key, aggregate_type, aggregate_id,
    payload, payload_bytes, content_type, headers, correlation_id, causation_path,
    schema_version, kseq, size, occurred_at, created_at, available_at, stage, next_attempt_at
) VALUES (
    :id, :stream, :lane, :key_hash, :type, :topic, :key, :aggregate_type, :aggregate_id,
    :payload, :payload_bytes, :content_type, :headers, :correlation_id, :causation_path,
    :schema_version, :kseq, :size, :occurred_us, :now, :available_us,
    CASE WHEN :available_us > :now THEN 'waiting' ELSE 'ready' END,
    CASE WHEN :available_us > :now THEN :available_us END
)
ON CONFLICT DO NOTHING
