UPDATE postroom_operation
SET position = coalesce(:position, position), handled = handled + :handled, failed = failed + :failed, state = :state, error = :error,
    changed_at = :now, owner = iif(:release, NULL, owner), until = iif(:release, NULL, until),
    fingerprint = iif(:over, NULL, fingerprint)
WHERE id = :id
