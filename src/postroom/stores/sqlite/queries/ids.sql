-- Ids that begin with a text come first of all that are not before it; the caller leaves out the rest.
SELECT o.id FROM postroom_outbox AS o WHERE o.id >= :beginning ORDER BY o.id LIMIT :limit
