UPDATE postroom_outbox
SET state = 'pending', stage = 'ready', attempts = 0, settled_at = NULL, next_attempt_at = NULL,
    expires_at = NULL, receipt = NULL, history = json_extract(n.value, '$[1]')
FROM json_each(:events) AS n
WHERE seq = json_extract(n.value, '$[0]') AND stage = 'over'
