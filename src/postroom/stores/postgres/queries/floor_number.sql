-- The highest number ever assigned; its writer holds a lock on the table until its transaction ends. With a cache or
-- a cycle this does not hold: then there is no proof.
SELECT pg_sequence_last_value(CAST(s.seqrelid AS regclass)), postroom_epoch(),
    CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint), postroom_backend_start(),
    s.seqcache = 1 AND s.seqincrement > 0 AND NOT s.seqcycle
FROM pg_sequence AS s
WHERE s.seqrelid = CAST(pg_get_serial_sequence('postroom_outbox', 'seq') AS regclass)
