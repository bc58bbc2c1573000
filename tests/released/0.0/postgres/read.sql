-- Nothing is computed here: the columns are those of a Record, in its order.
SELECT * FROM postroom_read(
    :stream, CAST(:lanes AS smallint[]), :owner, CAST(:tokens AS bigint[]), CAST(:floors AS bigint[]),
    CAST(:epoch AS bigint[]), :per_lane, :rows, :size, CAST(:exclude AS bytea[]))
