-- The highest number that was ever given; those who took one hold a lock on the table until they end.
SELECT pg_sequence_last_value(CAST(pg_get_serial_sequence('postroom_outbox', 'seq') AS regclass)), postroom_epoch()
