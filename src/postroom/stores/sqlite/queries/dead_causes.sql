SELECT o.type, coalesce(o.last_error, ''), count(*),
    CAST(min(o.settled_at) AS INTEGER), CAST(max(o.settled_at) AS INTEGER)
FROM postroom_outbox AS o INDEXED BY postroom_outbox_other
WHERE (o.state = 'processing' OR o.state = 'failed' OR o.state = 'dead' OR o.state = 'expired'
    OR o.state = 'cancelled')
  AND o.state = 'dead' AND (:stream IS NULL OR o.stream = :stream)
GROUP BY 1, 2
ORDER BY count(*) DESC LIMIT :limit
