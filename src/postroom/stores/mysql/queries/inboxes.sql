-- Of the rows of a consumer only some are counted.
SELECT
    (SELECT COUNT(*) FROM (
        SELECT 1 FROM postroom_inbox AS c WHERE c.consumer = :consumer AND c.state = 'done' LIMIT :most) AS few),
    (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MIN(o.processed_at)) FROM postroom_inbox AS o
     WHERE o.consumer = :consumer AND o.state = 'done')
