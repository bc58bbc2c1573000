UPDATE postroom_lease
SET owner = :owner, token = token + 1, replayed = NULL, length = abs(CAST(:seconds AS float8)) * interval '1 second',
    until = clock_timestamp() + CAST(:seconds AS float8) * interval '1 second'
WHERE stream = :stream AND lane = ANY (CAST(:lanes AS smallint[]))
RETURNING lane, token
