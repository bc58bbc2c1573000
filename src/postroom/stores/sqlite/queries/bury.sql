UPDATE postroom_outbox
SET state = 'dead', stage = 'over', settled_at = :now, last_error = :reason,
    attempts = coalesce(:attempts, attempts), available_at = CASE WHEN :attempts IS NULL THEN available_at END,
    history = json_extract(n.value, '$[1]'), next_attempt_at = NULL, lease_owner = NULL, lease_until = NULL
FROM json_each(:events) AS n
WHERE seq = json_extract(n.value, '$[0]') AND stage <> 'over'
