-- The highest number that was ever given; those who took one hold a lock on the table until they end. With a cache or
-- a cycle that is not so: then there is no proof.
SELECT pg_sequence_last_value(CAST(s.seqrelid AS regclass)), postroom_epoch(),
    CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint), postroom_backend_start(),
    s.seqcache = 1 AND s.seqincrement > 0 AND NOT s.seqcycle
FROM pg_sequence AS s
WHERE s.seqrelid = CAST(pg_get_serial_sequence('postroom_outbox', 'seq') AS regclass)
