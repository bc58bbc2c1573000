-- The numbers of new events begin above those of the old ones, whenever these are moved. They are never lowered.
SELECT setval(CAST(s.seqrelid AS regclass),
    greatest(CAST(:highest AS bigint) + CAST(:room AS bigint), pg_sequence_last_value(CAST(s.seqrelid AS regclass))))
FROM pg_sequence AS s
WHERE s.seqrelid = CAST(pg_get_serial_sequence('postroom_outbox', 'seq') AS regclass)
  AND coalesce(pg_sequence_last_value(CAST(s.seqrelid AS regclass)), 0) <= CAST(:highest AS bigint)
