SELECT o.seq, o.id, o.stream, o.lane, o.key_hash, o.type, o.topic, o.key, o.aggregate_type, o.aggregate_id,
    coalesce(o.payload_bytes, CAST(o.payload AS BLOB)), o.content_type, o.headers, o.correlation_id,
    o.causation_path, o.schema_version, o.kseq, o.causation_id, o.options, o.expires_at, o.occurred_at, o.created_at,
    o.state, o.attempts, o.next_attempt_at, o.last_error
FROM postroom_outbox AS o WHERE o.id = :id
