-- Dead, failed and processing events have their own index: no scan of the done ones.
SELECT o.seq, o.id, o.stream, o.lane, o.key_hash, o.type, o.topic, o.key, o.aggregate_type, o.aggregate_id,
    coalesce(o.payload_bytes, CAST(o.payload AS BLOB)), o.content_type, o.headers, o.correlation_id,
    o.causation_path, o.schema_version, o.kseq, o.causation_id, o.options, o.expires_at, o.occurred_at, o.created_at,
    o.state, o.attempts, o.next_attempt_at, o.last_error
FROM postroom_outbox AS o INDEXED BY postroom_outbox_other
WHERE (o.state = 'processing' OR o.state = 'failed' OR o.state = 'dead' OR o.state = 'expired'
    OR o.state = 'cancelled')
  AND o.seq > :after_seq AND o.state = :state
  AND (:stream IS NULL OR o.stream = :stream) AND (:type IS NULL OR o.type = :type)
  AND (:topic IS NULL OR o.topic = :topic) AND (:key IS NULL OR o.key = :key)
  AND (:error IS NULL OR instr(o.last_error, :error) > 0)
  AND (:from_us IS NULL OR o.created_at >= :from_us) AND (:before_us IS NULL OR o.created_at < :before_us)
  AND (:settled_before_us IS NULL OR o.settled_at < :settled_before_us)
  AND (:correlation_id IS NULL OR o.correlation_id = :correlation_id)
  AND (:causation_id IS NULL OR o.causation_id = :causation_id)
  AND (:until_seq IS NULL OR o.seq <= :until_seq)
ORDER BY o.seq {order} LIMIT :limit
