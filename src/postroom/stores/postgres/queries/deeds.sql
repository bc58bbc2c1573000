-- Instants: see postroom_read.
SELECT who, what, how_many, about, at + interval '946684800 s' FROM postroom_audit ORDER BY n DESC LIMIT :limit
