-- Dead, failed and processing events have their own index: no scan of the done ones. Instants: see postroom_instant.
SELECT
    o.seq, o.id, o.stream, o.lane, o.key_hash, o.type, o.topic, o.key, o.aggregate_type, o.aggregate_id,
    coalesce(o.payload_bytes, convert_to(o.payload, 'UTF8')), o.content_type, o.headers, o.correlation_id,
    o.causation_path, o.schema_version, o.kseq, o.causation_id, o.options, postroom_instant(o.expires_at),
    postroom_instant(o.occurred_at), postroom_instant(o.created_at), o.state, o.attempts,
    postroom_instant(o.next_attempt_at), o.last_error
FROM postroom_outbox AS o
WHERE o.state IN ('processing', 'failed', 'dead', 'expired', 'cancelled')
  AND o.seq > :after_seq AND o.state = CAST(:state AS text)
  AND (CAST(:stream AS text) IS NULL OR o.stream = :stream) AND (CAST(:type AS text) IS NULL OR o.type = :type)
  AND (CAST(:topic AS text) IS NULL OR o.topic = :topic) AND (CAST(:key AS text) IS NULL OR o.key = :key)
  AND (CAST(:error AS text) IS NULL OR strpos(o.last_error, :error) > 0)
  AND (CAST(:from_us AS bigint) IS NULL OR o.created_at >= 'epoch'::timestamptz + :from_us * interval '1 us')
  AND (CAST(:before_us AS bigint) IS NULL OR o.created_at < 'epoch'::timestamptz + :before_us * interval '1 us')
  AND (CAST(:settled_before_us AS bigint) IS NULL OR o.settled_at < 'epoch'::timestamptz + :settled_before_us * interval '1 us')
  AND (CAST(:correlation_id AS text) IS NULL OR o.correlation_id = :correlation_id)
  AND (CAST(:causation_id AS text) IS NULL OR o.causation_id = :causation_id)
  AND (CAST(:until_seq AS bigint) IS NULL OR o.seq <= :until_seq)
ORDER BY o.seq {order} LIMIT :limit
