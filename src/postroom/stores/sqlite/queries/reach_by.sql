SELECT count(*), coalesce({farthest}(looked.seq), 0)
FROM (
    SELECT o.seq FROM postroom_outbox AS o INDEXED BY postroom_outbox_{index}
    WHERE o.{column} = :{column} AND o.seq > :after_seq AND o.seq <= coalesce(:until_seq, 9223372036854775807)
    ORDER BY o.seq {order} LIMIT :rows) AS looked
