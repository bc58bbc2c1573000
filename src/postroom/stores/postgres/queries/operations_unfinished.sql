-- Few rows, by their own index: relays look every few seconds. Running ones come first: no number of stopped ones may
-- hide them.
SELECT id, kind, request, state, who, postroom_instant(created_at), postroom_instant(changed_at), total, handled, failed,
    position, error, owner, postroom_instant(until), token,
    state = 'running' AND (
        owner IS NULL OR until IS NULL OR until <= clock_timestamp()
        OR until > clock_timestamp() + CAST(:ahead AS float8) * interval '1 second')
FROM postroom_operation WHERE fingerprint IS NOT NULL ORDER BY state = 'running' DESC, created_at DESC, id LIMIT :limit
