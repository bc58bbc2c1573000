-- Consumers are few: each is found by a step in the primary key, which begins with it.
SELECT i.consumer, i.id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', COALESCE(i.processed_at, i.received_at)), i.state = 'done'
FROM (SELECT DISTINCT consumer FROM postroom_inbox) AS c
STRAIGHT_JOIN postroom_inbox AS i FORCE INDEX (PRIMARY) ON i.consumer = c.consumer AND i.id IN :ids
ORDER BY 3, 1
