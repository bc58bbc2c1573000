UPDATE postroom_outbox
SET state = 'dead', stage = 'over', settled_at = :now,
    attempts = json_extract(d.value, '$[1]'), last_error = json_extract(d.value, '$[2]'),
    next_attempt_at = NULL, lease_owner = NULL, lease_until = NULL
FROM json_each(:dead) AS d
WHERE seq = json_extract(d.value, '$[0]') AND stage <> 'over'
