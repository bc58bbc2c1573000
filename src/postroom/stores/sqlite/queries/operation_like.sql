-- The unfinished operation with the same request.
SELECT id, kind, request, state, who, created_at, changed_at, total, handled, failed, position, error, owner, until, token,
    state = 'running' AND (owner IS NULL OR until IS NULL OR until <= :now OR until > :now + :ahead)
FROM postroom_operation WHERE fingerprint = :fingerprint
