-- The stager moves them when they are due: at once.
UPDATE postroom_outbox
SET next_attempt_at = :now, history = coalesce(json_extract(n.value, '$[1]'), postroom_outbox.history)
FROM json_each(:events) AS n
WHERE seq = json_extract(n.value, '$[0]')
