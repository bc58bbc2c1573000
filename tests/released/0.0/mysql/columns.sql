-- The columns of every query for records, in the order of Record; not a complete statement. Text is read as bytes
-- and is decoded by the reader: CONVERT would turn invalid UTF-8 into '?', and so would a session's character set.
o.seq, o.id, o.stream, o.lane, o.key_hash, o.type, o.topic, o.`key`, o.aggregate_type, o.aggregate_id,
COALESCE(o.payload_bytes, CAST(o.payload AS BINARY)), o.content_type, CAST(o.headers AS BINARY),
o.correlation_id, CAST(o.causation_path AS BINARY), o.schema_version, o.kseq,
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.occurred_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.created_at),
o.state, o.attempts, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.next_attempt_at), CAST(o.last_error AS BINARY)
