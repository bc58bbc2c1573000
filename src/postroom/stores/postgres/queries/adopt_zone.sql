-- The time zone in which sessions of this role and database write times, and whether the server knows the one asked for.
SELECT coalesce(z.given, current_setting('TimeZone')),
    z.given IS NULL OR z.given ~ '^[+-][0-9]{1,2}:[0-9]{2}$'
        OR EXISTS (SELECT 1 FROM pg_timezone_names AS n WHERE lower(n.name) = lower(z.given))
FROM (SELECT CAST(:time_zone AS text) AS given) AS z
