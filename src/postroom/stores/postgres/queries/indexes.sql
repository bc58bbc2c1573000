-- The indexes of the outbox that are complete: a build that was interrupted leaves an invalid one.
SELECT c.relname FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = 'postroom_outbox'::regclass AND i.indisvalid AND i.indisready
