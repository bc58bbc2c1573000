UPDATE postroom_lease SET owner = NULL, until = '-infinity'
WHERE stream = :stream AND lane = ANY (CAST(:lanes AS smallint[]))
