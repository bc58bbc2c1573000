-- An end far ahead was written before the clock was set back. A locked row is being worked on.
UPDATE postroom_operation
SET owner = :owner, token = token + 1, until = clock_timestamp() + CAST(:seconds AS float8) * interval '1 second'
WHERE id = (
    SELECT p.id FROM postroom_operation AS p
    WHERE p.id = :id AND p.state = 'running' AND (
        p.owner IS NULL OR p.owner = :owner OR p.until IS NULL OR p.until <= clock_timestamp()
        OR p.until > clock_timestamp() + CAST(:ahead AS float8) * interval '1 second')
    FOR NO KEY UPDATE SKIP LOCKED)
