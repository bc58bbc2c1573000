-- The indexes of the outbox: whether each is complete, and whether a build of it is running.
SELECT c.relname, i.indisvalid AND i.indisready,
    EXISTS (SELECT 1 FROM pg_stat_progress_create_index AS p WHERE p.index_relid = i.indexrelid)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid WHERE i.indrelid = 'postroom_outbox'::regclass
