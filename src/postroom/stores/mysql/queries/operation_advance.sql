UPDATE postroom_operation
SET position = coalesce(:position, position), handled = handled + :handled, failed = failed + :failed, state = :state, error = :error,
    changed_at = UTC_TIMESTAMP(6), owner = IF(:release, NULL, owner),
    until = IF(:release, NULL, UTC_TIMESTAMP(6) + INTERVAL :microseconds MICROSECOND),
    fingerprint = IF(:over, NULL, fingerprint)
WHERE id = :id
