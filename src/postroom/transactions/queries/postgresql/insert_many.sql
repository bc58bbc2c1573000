-- As `insert`, for many rows in one statement: each parameter is the array of a column. ORDER BY, because the numbers
-- in `seq` are given in the order in which the rows come.
INSERT INTO postroom_outbox (
    id, stream, lane, key_hash, type, topic, key, aggregate_type, aggregate_id,
    payload, payload_bytes, content_type, headers, correlation_id, causation_path,
    schema_version, kseq, size, occurred_at, created_at, available_at, stage, next_attempt_at,
    causation_id, options, expires_at
)
SELECT
    r.id, r.stream, r.lane, r.key_hash, r.type, r.topic, r.key, r.aggregate_type, r.aggregate_id,
    r.payload, r.payload_bytes, r.content_type, r.headers, r.correlation_id, r.causation_path,
    r.schema_version, r.kseq, r.size,
    timestamptz 'epoch' + r.occurred_us * interval '1 microsecond',
    statement_timestamp(),
    timestamptz 'epoch' + r.available_us * interval '1 microsecond',
    CASE WHEN timestamptz 'epoch' + r.available_us * interval '1 microsecond' > statement_timestamp()
         THEN 'waiting' ELSE 'ready' END,
    CASE WHEN timestamptz 'epoch' + r.available_us * interval '1 microsecond' > statement_timestamp()
         THEN timestamptz 'epoch' + r.available_us * interval '1 microsecond' END,
    r.causation_id, r.options, timestamptz 'epoch' + r.expires_us * interval '1 microsecond'
FROM unnest(
    CAST(:id AS text[]), CAST(:stream AS text[]), CAST(:lane AS smallint[]), CAST(:key_hash AS bytea[]),
    CAST(:type AS text[]), CAST(:topic AS text[]), CAST(:key AS text[]), CAST(:aggregate_type AS text[]),
    CAST(:aggregate_id AS text[]), CAST(:payload AS text[]), CAST(:payload_bytes AS bytea[]),
    CAST(:content_type AS text[]), CAST(:headers AS text[]), CAST(:correlation_id AS text[]),
    CAST(:causation_path AS text[]), CAST(:schema_version AS integer[]), CAST(:kseq AS bigint[]),
    CAST(:size AS integer[]), CAST(:occurred_us AS bigint[]), CAST(:available_us AS bigint[]),
    CAST(:causation_id AS text[]), CAST(:options AS text[]), CAST(:expires_us AS bigint[])
) WITH ORDINALITY AS r (
    id, stream, lane, key_hash, type, topic, key, aggregate_type, aggregate_id, payload, payload_bytes,
    content_type, headers, correlation_id, causation_path, schema_version, kseq, size, occurred_us,
    available_us, causation_id, options, expires_us, place
)
ORDER BY r.place
ON CONFLICT DO NOTHING
