SELECT kind, name, paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > :now), paused_at, paused_until,
    max_per_second, max_in_flight, reason, who, changed_at
FROM postroom_control ORDER BY kind, name
