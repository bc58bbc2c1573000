SELECT count(*), coalesce({farthest}(looked.seq), 0)
FROM (
    SELECT o.seq FROM postroom_outbox AS o
    WHERE o.{column} IS NOT NULL AND (o.{column} COLLATE "C", o.seq) > (CAST(:{column} AS text), :after_seq)
      AND o.{column} COLLATE "C" <= CAST(:{column} AS text)
      AND (CAST(:until_seq AS bigint) IS NULL OR o.seq <= :until_seq)
    ORDER BY o.{column} COLLATE "C" {order}, o.seq {order} LIMIT :rows) AS looked
