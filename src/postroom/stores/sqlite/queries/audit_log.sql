SELECT who, what, how_many, about, at FROM postroom_audit ORDER BY n DESC LIMIT :limit
