UPDATE postroom_operation
SET state = :state, error = iif(:state = 'running', NULL, error), changed_at = :now, owner = NULL, until = NULL,
    token = token + 1, fingerprint = iif(:over, NULL, fingerprint)
WHERE id = :id AND state IN (SELECT value FROM json_each(:before))
