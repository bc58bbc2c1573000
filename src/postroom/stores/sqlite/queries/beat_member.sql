INSERT INTO postroom_member (stream, owner, name, healthy, until, length)
VALUES (:stream, :owner, :name, :healthy, :until, :length)
ON CONFLICT (stream, owner) DO UPDATE
SET name = excluded.name, healthy = excluded.healthy, until = excluded.until, length = excluded.length
