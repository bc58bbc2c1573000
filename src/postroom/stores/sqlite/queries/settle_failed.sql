UPDATE postroom_outbox
SET state = 'failed', stage = 'waiting',
    attempts = json_extract(f.value, '$[1]'), last_error = json_extract(f.value, '$[2]'),
    next_attempt_at = json_extract(f.value, '$[3]'), lease_owner = NULL, lease_until = NULL
FROM json_each(:failed) AS f
WHERE seq = json_extract(f.value, '$[0]') AND stage <> 'over'
