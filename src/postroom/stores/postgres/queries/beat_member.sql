-- Never waits for a lock: a row that another transaction has locked is left as it is, and the beat goes on.
WITH mine AS MATERIALIZED (
    SELECT owner FROM postroom_member WHERE stream = :stream AND owner = :owner FOR UPDATE SKIP LOCKED
), seen AS (
    UPDATE postroom_member AS m
    SET name = :name, healthy = :healthy, length = abs(CAST(:seconds AS float8)) * interval '1 second',
        until = clock_timestamp() + CAST(:seconds AS float8) * interval '1 second'
    WHERE m.stream = :stream AND m.owner IN (SELECT owner FROM mine)
)
INSERT INTO postroom_member (stream, owner, name, healthy, length, until)
SELECT :stream, :owner, :name, :healthy, abs(CAST(:seconds AS float8)) * interval '1 second',
    clock_timestamp() + CAST(:seconds AS float8) * interval '1 second'
WHERE NOT EXISTS (SELECT 1 FROM postroom_member WHERE stream = :stream AND owner = :owner)
ON CONFLICT DO NOTHING
