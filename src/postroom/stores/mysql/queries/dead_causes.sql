SELECT CONVERT(o.type USING utf8mb4), COALESCE(o.last_error, ''), COUNT(*),
    MIN(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.settled_at)),
    MAX(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.settled_at))
FROM postroom_outbox AS o FORCE INDEX (postroom_outbox_open)
WHERE o.open_state = 'dead' AND (:stream IS NULL OR o.stream = :stream)
GROUP BY 1, 2
ORDER BY COUNT(*) DESC LIMIT :limit
