SELECT id, kind, request, state, who, postroom_instant(created_at), postroom_instant(changed_at), total, handled, failed,
    position, error, owner, postroom_instant(until), token,
    state = 'running' AND (
        owner IS NULL OR until IS NULL OR until <= clock_timestamp()
        OR until > clock_timestamp() + CAST(:ahead AS float8) * interval '1 second')
FROM postroom_operation ORDER BY created_at DESC, id LIMIT :limit
