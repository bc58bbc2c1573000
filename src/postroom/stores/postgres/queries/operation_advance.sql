UPDATE postroom_operation
SET position = coalesce(:position, position), handled = handled + :handled, failed = failed + :failed, state = :state, error = :error,
    changed_at = clock_timestamp(), owner = CASE WHEN :release THEN NULL ELSE owner END,
    until = CASE WHEN :release THEN NULL ELSE until END, fingerprint = CASE WHEN :over THEN NULL ELSE fingerprint END
WHERE id = :id
