-- Consumers are few: each is found by a step in the primary key, which begins with it.
WITH RECURSIVE consumers (name) AS (
    (SELECT i.consumer FROM postroom_inbox AS i ORDER BY i.consumer LIMIT 1)
    UNION ALL
    SELECT (SELECT i.consumer FROM postroom_inbox AS i WHERE i.consumer > c.name ORDER BY i.consumer LIMIT 1)
    FROM consumers AS c WHERE c.name IS NOT NULL)
SELECT c.name, n.id, postroom_instant(i.at), i.done
FROM consumers AS c CROSS JOIN unnest(CAST(:ids AS text[])) AS n (id)
CROSS JOIN LATERAL (
    SELECT coalesce(f.processed_at, f.received_at) AS at, f.state = 'done' AS done FROM postroom_inbox AS f
    WHERE f.consumer = c.name AND f.id = n.id OFFSET 0) AS i
ORDER BY i.at, c.name
