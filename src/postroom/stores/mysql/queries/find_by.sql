-- The events of one key, correlation id or causation id, by its index.
SELECT {columns} FROM postroom_outbox AS o FORCE INDEX (postroom_outbox_{index})
WHERE o.seq > :after_seq AND (:state IS NULL OR o.state = :state)
  AND (:stream IS NULL OR o.stream = :stream) AND (:type IS NULL OR o.type = :type)
  AND (:topic IS NULL OR o.topic = :topic) AND (:key IS NULL OR o.`key` = :key) AND o.`{column}` = :{column}
  AND (:error IS NULL OR LOCATE(:error, o.last_error) > 0)
  AND (:from_us IS NULL OR TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.created_at) >= :from_us)
  AND (:before_us IS NULL OR TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.created_at) < :before_us)
  AND (:settled_before_us IS NULL OR (o.stage = 'over'
    AND TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.settled_at) < :settled_before_us))
  AND (:correlation_id IS NULL OR o.correlation_id = :correlation_id)
  AND (:causation_id IS NULL OR o.causation_id = :causation_id)
  AND (:until_seq IS NULL OR o.seq <= :until_seq)
ORDER BY o.seq {order} LIMIT :limit
