UPDATE postroom_lease
SET owner = :owner, token = token + 1, until = clock_timestamp() + CAST(:seconds AS float8) * interval '1 second'
WHERE stream = :stream AND lane = ANY (CAST(:lanes AS smallint[]))
RETURNING lane, token
