-- `attempts` is set from the value that was read, so that a repeated settle counts once.
UPDATE postroom_outbox
SET state = 'processing', lease_owner = :owner, lease_until = :until,
    attempts = max(attempts, min(json_extract(s.value, '$[2]') + 1, 999999))
FROM json_each(:starts) AS s
WHERE seq = json_extract(s.value, '$[0]') AND json_extract(s.value, '$[1]') IN (postroom_outbox.id, hex(postroom_outbox.id))
  AND +stream = :stream AND +lane IN (SELECT value FROM json_each(:lanes)) AND stage = 'ready'
