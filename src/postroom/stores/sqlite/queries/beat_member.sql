INSERT INTO postroom_member (stream, owner, name, healthy, until)
VALUES (:stream, :owner, :name, :healthy, :until)
ON CONFLICT (stream, owner) DO UPDATE
SET name = excluded.name, healthy = excluded.healthy, until = excluded.until
