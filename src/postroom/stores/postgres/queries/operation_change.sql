UPDATE postroom_operation
SET state = :state, error = CASE WHEN :state = 'running' THEN NULL ELSE error END, changed_at = clock_timestamp(),
    owner = NULL, until = NULL, token = token + 1, fingerprint = CASE WHEN :over THEN NULL ELSE fingerprint END
WHERE id = :id AND state = ANY (CAST(:before AS text[]))
