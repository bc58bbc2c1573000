SELECT o.type, coalesce(o.last_error, ''), count(*), min(o.settled_at), max(o.settled_at)
FROM postroom_outbox AS o INDEXED BY postroom_outbox_other
WHERE (o.state = 'processing' OR o.state = 'failed' OR o.state = 'dead')
  AND o.state = 'dead' AND (:stream IS NULL OR o.stream = :stream)
GROUP BY 1, 2
