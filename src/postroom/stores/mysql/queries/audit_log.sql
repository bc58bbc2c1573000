SELECT who, what, how_many, about, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', at)
FROM postroom_audit ORDER BY n DESC LIMIT :limit
