-- A new place at the end; a strict event gets a new number there (B6).
INSERT INTO postroom_outbox (
    id, key_hash, lane, kseq, created_at, stream,
    type, topic, key, aggregate_type, aggregate_id, payload, payload_bytes,
    content_type, headers, correlation_id, causation_path, schema_version, size, occurred_at, causation_id, options, history)
SELECT :id, CAST(:key_hash AS bytea), :lane, CAST(:kseq AS bigint),
    CASE WHEN CAST(:fresh AS boolean) THEN clock_timestamp() ELSE created_at END, stream,
    type, topic, key, aggregate_type, aggregate_id, payload, payload_bytes,
    content_type, headers, correlation_id, causation_path, schema_version, size, occurred_at, causation_id, options, CAST(:history AS text)
FROM postroom_outbox WHERE seq = :seq
