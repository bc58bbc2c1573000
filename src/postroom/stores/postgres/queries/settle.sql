SELECT held, unchanged FROM postroom_settle3(
    :stream, :owner, CAST(:lanes AS smallint[]), CAST(:tokens AS bigint[]), CAST(:seqs AS bigint[]),
    CAST(:ids AS text[]), CAST(:receipts AS text[]), :keep)
