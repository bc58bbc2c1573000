-- What every question for records selects, in the order of Record; not a statement of its own.
o.seq, CONVERT(o.id USING utf8mb4), CONVERT(o.stream USING utf8mb4), o.lane, o.key_hash,
CONVERT(o.type USING utf8mb4), CONVERT(o.topic USING utf8mb4), CONVERT(o.`key` USING utf8mb4),
CONVERT(o.aggregate_type USING utf8mb4), CONVERT(o.aggregate_id USING utf8mb4),
COALESCE(o.payload_bytes, CAST(o.payload AS BINARY)), CONVERT(o.content_type USING utf8mb4), o.headers,
CONVERT(o.correlation_id USING utf8mb4), o.causation_path, o.schema_version, o.kseq,
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.occurred_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.created_at),
o.state, o.attempts, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.next_attempt_at), o.last_error
