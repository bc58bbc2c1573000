-- Number 0 means that its number was given to the marker: a replay needs a new one (B6).
INSERT INTO postroom_outbox (
    id, kseq, state, stage, last_error, settled_at,
    stream, lane, key_hash, created_at, available_at, attempts,
    type, topic, key, aggregate_type, aggregate_id, payload, payload_bytes,
    content_type, headers, correlation_id, causation_path, schema_version, size, occurred_at, causation_id, options, expires_at, history)
SELECT :id, iif(kseq IS NULL, NULL, 0), 'dead', 'over', :reason, :now,
    stream, lane, key_hash, created_at, available_at, attempts,
    type, topic, key, aggregate_type, aggregate_id, payload, payload_bytes,
    content_type, headers, correlation_id, causation_path, schema_version, size, occurred_at, causation_id, options, expires_at, :history
FROM postroom_outbox WHERE seq = :seq
