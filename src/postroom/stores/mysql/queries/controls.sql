SELECT kind, CONVERT(name USING utf8mb4),
    paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > UTC_TIMESTAMP(6)),
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', paused_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', paused_until),
    max_per_second, max_in_flight, reason, who, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', changed_at)
FROM postroom_control ORDER BY kind, name
