UPDATE postroom_lease SET until = clock_timestamp() + CAST(:seconds AS float8) * interval '1 second'
WHERE stream = :stream AND lane = ANY (CAST(:lanes AS smallint[]))
