SELECT count(*), coalesce({farthest}(looked.seq), 0)
FROM (
    SELECT o.seq FROM postroom_outbox AS o
    WHERE o.state IN ('processing', 'failed', 'dead', 'expired', 'cancelled') AND o.state = CAST(:state AS text)
      AND (CAST(:stream AS text) IS NULL OR o.stream = :stream)
      AND o.seq > :after_seq AND (CAST(:until_seq AS bigint) IS NULL OR o.seq <= :until_seq)
    ORDER BY o.seq {order} LIMIT :rows) AS looked
