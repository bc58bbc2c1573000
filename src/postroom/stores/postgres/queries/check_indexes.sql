-- An index that is being built, or whose building failed, is of no use to a read.
SELECT c.relname FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = CAST('postroom_outbox' AS regclass) AND i.indisvalid AND i.indisready
