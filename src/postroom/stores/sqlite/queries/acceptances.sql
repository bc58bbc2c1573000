-- Consumers are few: each is found by a step in the primary key, which begins with it.
WITH RECURSIVE consumers (name) AS (
    SELECT min(consumer) FROM postroom_inbox
    UNION ALL
    SELECT (SELECT min(i.consumer) FROM postroom_inbox AS i WHERE i.consumer > c.name)
    FROM consumers AS c WHERE c.name IS NOT NULL)
SELECT i.consumer, i.id, coalesce(i.processed_at, i.received_at), i.state = 'done'
FROM consumers AS c CROSS JOIN json_each(:ids) AS n
CROSS JOIN postroom_inbox AS i ON i.consumer = c.name AND i.id = n.value
ORDER BY 3, 1
