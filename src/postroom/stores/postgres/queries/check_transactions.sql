-- The oldest of those that keep vacuum from removing anything. Its own role is seen by everyone; those of others only
-- by members of pg_read_all_stats, and then their age is null.
SELECT a.pid, a.usename, a.application_name, date_part('epoch', clock_timestamp() - a.xact_start)
FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
  AND a.xact_start IS NOT NULL AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
ORDER BY a.xact_start LIMIT 1
