-- 946,684,800 seconds lie between 1970 and 2000, from where PostgreSQL counts: so the binary form of an instant is the
-- number of microseconds that a Record holds.
SELECT seq, id, stream, lane, key_hash, type, topic, key, aggregate_type, aggregate_id,
    payload, content_type, headers, correlation_id, causation_path, schema_version, kseq,
    occurred_at + interval '946684800 s', created_at + interval '946684800 s', state, attempts,
    next_attempt_at + interval '946684800 s', last_error, barrier
FROM postroom_read(
    :stream, CAST(:lanes AS smallint[]), :owner, CAST(:tokens AS bigint[]), CAST(:floors AS bigint[]),
    :epoch, :per_lane, :rows, :size, CAST(:exclude AS bytea[]))
