-- "In the future" is decided by the server's clock (W7). statement_timestamp() and not clock_timestamp(), which would
-- be read anew at each place and could answer differently; unlike now() it does not stand still in a transaction.
-- Microseconds times an interval of one are exact up to 2^53, the year 2255.
-- No conflict target and no RETURNING: the right to INSERT is enough (W5).
INSERT INTO postroom_outbox (
    id, stream, lane, key_hash, type, topic, key, aggregate_type, aggregate_id,
    payload, payload_bytes, content_type, headers, correlation_id, causation_path,
    schema_version, kseq, size, occurred_at, created_at, available_at, stage, next_attempt_at
) VALUES (
    :id, :stream, :lane, :key_hash, :type, :topic, :key, :aggregate_type, :aggregate_id,
    :payload, :payload_bytes, :content_type, :headers, :correlation_id, :causation_path,
    :schema_version, :kseq, :size,
    timestamptz 'epoch' + CAST(:occurred_us AS bigint) * interval '1 microsecond',
    statement_timestamp(),
    timestamptz 'epoch' + CAST(:available_us AS bigint) * interval '1 microsecond',
    CASE WHEN timestamptz 'epoch' + CAST(:available_us AS bigint) * interval '1 microsecond' > statement_timestamp()
         THEN 'waiting' ELSE 'ready' END,
    CASE WHEN timestamptz 'epoch' + CAST(:available_us AS bigint) * interval '1 microsecond' > statement_timestamp()
         THEN timestamptz 'epoch' + CAST(:available_us AS bigint) * interval '1 microsecond' END
)
ON CONFLICT DO NOTHING
