-- Dead, failed and processing events have an index of their own: no walk over the done ones.
SELECT {columns} FROM postroom_outbox AS o FORCE INDEX (postroom_outbox_open)
WHERE o.open_state = :state AND o.seq > :after_seq
  AND (:stream IS NULL OR o.stream = :stream) AND (:type IS NULL OR o.type = :type)
  AND (:topic IS NULL OR o.topic = :topic) AND (:key IS NULL OR o.`key` = :key)
ORDER BY o.seq LIMIT :limit
