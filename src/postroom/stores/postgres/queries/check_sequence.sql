SELECT s.seqcache, s.seqincrement FROM pg_sequence AS s
WHERE s.seqrelid = CAST(pg_get_serial_sequence('postroom_outbox', 'seq') AS regclass)
