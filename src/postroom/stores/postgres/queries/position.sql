-- Instants: see postroom_instant.
SELECT o.seq, postroom_instant(o.created_at), (SELECT max(h.seq) FROM postroom_outbox AS h)
FROM postroom_outbox AS o WHERE o.seq >= :seq ORDER BY o.seq LIMIT 1
