-- The consumers, each found by a look into the index; of their rows only some are counted.
WITH RECURSIVE names AS (
    SELECT min(consumer) AS consumer FROM postroom_inbox WHERE state = 'done'
    UNION ALL
    SELECT (SELECT min(i.consumer) FROM postroom_inbox AS i WHERE i.state = 'done' AND i.consumer > n.consumer)
    FROM names AS n WHERE n.consumer IS NOT NULL)
SELECT n.consumer,
    (SELECT count(*) FROM (
        SELECT 1 FROM postroom_inbox AS c WHERE c.state = 'done' AND c.consumer = n.consumer LIMIT :most) AS few),
    (SELECT postroom_instant(min(o.processed_at)) FROM postroom_inbox AS o
     WHERE o.state = 'done' AND o.consumer = n.consumer),
    (SELECT count(*) FROM (
        SELECT 1 FROM postroom_inbox AS r WHERE r.state = 'done' AND r.consumer = n.consumer
          AND r.processed_at > clock_timestamp() - CAST(:recent AS float8) * interval '1 second' LIMIT :most) AS late),
    (SELECT postroom_instant(max(l.processed_at)) FROM postroom_inbox AS l
     WHERE l.state = 'done' AND l.consumer = n.consumer)
FROM names AS n WHERE n.consumer IS NOT NULL ORDER BY n.consumer
