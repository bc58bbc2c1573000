-- Few rows, by their own index: relays look every few seconds. Running ones come first: no number of stopped ones may
-- hide them.
SELECT CONVERT(id USING utf8mb4), kind, request, state, who, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at),
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', changed_at), total, handled, failed, position, error,
    CONVERT(owner USING utf8mb4), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', until), token,
    state = 'running' AND (
        owner IS NULL OR until IS NULL OR until <= UTC_TIMESTAMP(6)
        OR until > UTC_TIMESTAMP(6) + INTERVAL :ahead MICROSECOND)
FROM postroom_operation FORCE INDEX (postroom_operation_unfinished)
WHERE fingerprint IS NOT NULL ORDER BY state = 'running' DESC, created_at DESC, id LIMIT :limit
