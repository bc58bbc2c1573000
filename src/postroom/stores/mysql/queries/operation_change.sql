UPDATE postroom_operation
SET error = IF(:state = 'running', NULL, error), state = :state, changed_at = UTC_TIMESTAMP(6), owner = NULL,
    until = NULL, token = token + 1, fingerprint = IF(:over, NULL, fingerprint)
WHERE id = :id AND state IN :before
