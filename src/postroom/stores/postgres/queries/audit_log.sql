-- Instants: see postroom_instant.
SELECT who, what, how_many, about, postroom_instant(at) FROM postroom_audit ORDER BY n DESC LIMIT :limit
