-- The columns of the old table, with their types; no row if there is no such table.
SELECT a.attname, format_type(a.atttypid, NULL) FROM pg_attribute AS a
WHERE a.attrelid = CAST(to_regclass(CAST(:name AS text)) AS oid) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
