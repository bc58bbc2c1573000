UPDATE postroom_outbox
SET state = 'failed', stage = 'waiting',
    attempts = json_extract(f.value, '$[2]'), last_error = json_extract(f.value, '$[3]'),
    next_attempt_at = json_extract(f.value, '$[4]'),
    history = coalesce(json_extract(f.value, '$[5]'), history), lease_owner = NULL, lease_until = NULL
FROM json_each(:failed) AS f
WHERE seq = json_extract(f.value, '$[0]') AND json_extract(f.value, '$[1]') IN (postroom_outbox.id, hex(postroom_outbox.id))
  AND +stream = :stream AND +lane IN (SELECT value FROM json_each(:lanes)) AND stage <> 'over'
