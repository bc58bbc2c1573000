-- Instants: see postroom_read.
SELECT o.type, coalesce(o.last_error, ''), count(*),
    min(o.settled_at) + interval '946684800 s', max(o.settled_at) + interval '946684800 s'
FROM postroom_outbox AS o
WHERE o.state IN ('processing', 'failed', 'dead')
  AND o.state = 'dead' AND (CAST(:stream AS text) IS NULL OR o.stream = :stream)
GROUP BY 1, 2
