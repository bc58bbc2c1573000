-- `attempts` is set from what was read, so that a repeated settle counts once.
UPDATE postroom_outbox
SET state = 'processing', lease_owner = :owner, lease_until = :until,
    attempts = max(attempts, json_extract(s.value, '$[1]') + 1)
FROM json_each(:starts) AS s
WHERE seq = json_extract(s.value, '$[0]') AND stage = 'ready'
