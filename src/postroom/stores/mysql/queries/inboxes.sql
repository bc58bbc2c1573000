-- Of the rows of a consumer only some are counted.
SELECT
    (SELECT COUNT(*) FROM (
        SELECT 1 FROM postroom_inbox AS c WHERE c.consumer = :consumer AND c.state = 'done' LIMIT :most) AS few),
    (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MIN(o.processed_at)) FROM postroom_inbox AS o
     WHERE o.consumer = :consumer AND o.state = 'done'),
    (SELECT COUNT(*) FROM (
        SELECT 1 FROM postroom_inbox AS r WHERE r.consumer = :consumer AND r.state = 'done'
          AND r.processed_at > UTC_TIMESTAMP(6) - INTERVAL :recent SECOND LIMIT :most) AS late),
    (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MAX(l.processed_at)) FROM postroom_inbox AS l
     WHERE l.consumer = :consumer AND l.state = 'done')
