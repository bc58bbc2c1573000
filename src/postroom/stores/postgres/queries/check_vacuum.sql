-- Whether autovacuum is turned off for the table itself.
SELECT EXISTS (
    SELECT 1 FROM pg_class AS c, unnest(c.reloptions) AS o (setting)
    WHERE c.oid = CAST('postroom_outbox' AS regclass) AND o.setting IN ('autovacuum_enabled=off', 'autovacuum_enabled=false'))
