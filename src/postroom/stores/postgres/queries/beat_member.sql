INSERT INTO postroom_member AS m (stream, owner, name, healthy, until)
VALUES (:stream, :owner, :name, :healthy, clock_timestamp() + CAST(:seconds AS float8) * interval '1 second')
ON CONFLICT (stream, owner) DO UPDATE
SET name = excluded.name, healthy = excluded.healthy, until = excluded.until
