-- The time zone in which the server's sessions write NOW(), what kind of column holds the times, and whether the
-- server knows the zone: without its tables of time zones it knows offsets and SYSTEM only.
SELECT COALESCE(:time_zone, @@global.time_zone),
    (SELECT data_type FROM information_schema.columns
     WHERE table_schema = COALESCE(:database, DATABASE()) AND table_name = :name AND column_name = 'created_at'),
    CONVERT_TZ('2024-01-01', COALESCE(:time_zone, @@global.time_zone), '+00:00') IS NOT NULL
