-- Instants: see postroom_instant.
SELECT kind, name,
    paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > clock_timestamp()),
    postroom_instant(paused_at), postroom_instant(paused_until), max_per_second, max_in_flight, reason, who,
    postroom_instant(changed_at)
FROM postroom_control ORDER BY kind, name
