-- They stay 'waiting', also if the time has passed: the stager makes them ready.
UPDATE postroom_outbox
SET available_at = :at, next_attempt_at = :at, history = coalesce(json_extract(n.value, '$[1]'), postroom_outbox.history)
FROM json_each(:events) AS n
WHERE seq = json_extract(n.value, '$[0]')
