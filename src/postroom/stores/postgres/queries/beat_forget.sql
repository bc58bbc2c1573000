-- Members that are long gone, or from before the clock was set back; one that is locked is left to the next beat.
DELETE FROM postroom_member
WHERE stream = :stream AND owner IN (
    SELECT owner FROM postroom_member
    WHERE stream = :stream AND (
        until < clock_timestamp() - CAST(:seconds AS float8) * interval '1 second'
        OR until > clock_timestamp() + 10 * length)
    FOR UPDATE SKIP LOCKED)
