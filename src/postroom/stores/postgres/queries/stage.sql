SELECT moved, due_seconds, ready, lanes, lowest
FROM postroom_stage3(
    :stream, CAST(:lanes AS smallint[]), CAST(:owners AS text[]), CAST(:tokens AS bigint[]),
    CAST(:floors AS bigint[]), CAST(:epoch AS bigint[]), :limit)
