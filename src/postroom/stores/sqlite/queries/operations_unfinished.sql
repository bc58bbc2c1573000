-- Few rows, by their own index: relays look every few seconds. Running ones come first: no number of stopped ones may
-- hide them.
SELECT id, kind, request, state, who, created_at, changed_at, total, handled, failed, position, error, owner, until, token,
    state = 'running' AND (owner IS NULL OR until IS NULL OR until <= :now OR until > :now + :ahead)
FROM postroom_operation WHERE fingerprint IS NOT NULL ORDER BY state = 'running' DESC, created_at DESC, id LIMIT :limit
