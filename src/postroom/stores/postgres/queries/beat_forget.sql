DELETE FROM postroom_member
WHERE stream = :stream AND until < clock_timestamp() - CAST(:seconds AS float8) * interval '1 second'
