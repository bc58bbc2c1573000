-- Instants: see postroom_instant.
SELECT o.type, coalesce(o.last_error, ''), count(*),
    postroom_instant(min(o.settled_at)), postroom_instant(max(o.settled_at))
FROM postroom_outbox AS o
WHERE o.state IN ('processing', 'failed', 'dead', 'expired', 'cancelled')
  AND o.state = 'dead' AND (CAST(:stream AS text) IS NULL OR o.stream = :stream)
GROUP BY 1, 2
ORDER BY count(*) DESC LIMIT :limit
