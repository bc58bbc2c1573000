SELECT COUNT(*), COALESCE({farthest}(looked.seq), 0)
FROM (
    SELECT o.seq FROM postroom_outbox AS o FORCE INDEX (postroom_outbox_open)
    WHERE o.open_state = :state AND o.seq > :after_seq AND (:until_seq IS NULL OR o.seq <= :until_seq)
      AND (:stream IS NULL OR o.stream = :stream)
    ORDER BY o.seq {order} LIMIT :rows) AS looked
