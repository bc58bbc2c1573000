UPDATE postroom_outbox
SET state = 'cancelled', stage = 'over', settled_at = :now, next_attempt_at = NULL,
    history = coalesce(json_extract(n.value, '$[1]'), postroom_outbox.history)
FROM json_each(:events) AS n
WHERE seq = json_extract(n.value, '$[0]')
