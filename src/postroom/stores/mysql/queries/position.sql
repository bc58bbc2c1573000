SELECT o.seq, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.created_at), (SELECT MAX(h.seq) FROM postroom_outbox AS h)
FROM postroom_outbox AS o WHERE o.seq >= :seq ORDER BY o.seq LIMIT 1
