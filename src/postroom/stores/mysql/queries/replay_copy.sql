-- A new place at the end; a strict event gets a new number there (B6).
INSERT INTO postroom_outbox (
    id, key_hash, lane, kseq, created_at, stream,
    type, topic, `key`, aggregate_type, aggregate_id, payload, payload_bytes,
    content_type, headers, correlation_id, causation_path, schema_version, size, occurred_at, causation_id, options, history)
SELECT :id, :key_hash, :lane, :kseq,
    IF(:is_new, UTC_TIMESTAMP(6), created_at), stream,
    type, topic, `key`, aggregate_type, aggregate_id, payload, payload_bytes,
    content_type, headers, correlation_id, causation_path, schema_version, size, occurred_at, causation_id, options, :history
FROM postroom_outbox WHERE seq = :seq
