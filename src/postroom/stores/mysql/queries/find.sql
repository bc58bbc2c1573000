SELECT {columns} FROM postroom_outbox AS o
WHERE o.seq > :after_seq AND (:state IS NULL OR o.state = :state)
  AND (:stream IS NULL OR o.stream = :stream) AND (:type IS NULL OR o.type = :type)
  AND (:topic IS NULL OR o.topic = :topic) AND (:key IS NULL OR o.`key` = :key)
ORDER BY o.seq LIMIT :limit
