SELECT count(*), coalesce({farthest}(looked.seq), 0)
FROM (
    SELECT o.seq FROM postroom_outbox AS o INDEXED BY postroom_outbox_other
    WHERE (o.state = 'processing' OR o.state = 'failed' OR o.state = 'dead' OR o.state = 'expired'
        OR o.state = 'cancelled')
      AND o.state = :state AND (:stream IS NULL OR o.stream = :stream)
      AND o.seq > :after_seq AND o.seq <= coalesce(:until_seq, 9223372036854775807)
    ORDER BY o.seq {order} LIMIT :rows) AS looked
