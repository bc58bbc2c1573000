SELECT COUNT(*), COALESCE({farthest}(looked.seq), 0)
FROM (
    SELECT o.seq FROM postroom_outbox AS o FORCE INDEX (PRIMARY)
    WHERE o.seq > :after_seq AND (:until_seq IS NULL OR o.seq <= :until_seq) ORDER BY o.seq {order} LIMIT :rows) AS looked
