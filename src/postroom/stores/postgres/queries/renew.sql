SELECT lane, token FROM postroom_renew(
    :stream, :owner, CAST(:lanes AS smallint[]), CAST(:tokens AS bigint[]), :seconds, :step, :doubt)
