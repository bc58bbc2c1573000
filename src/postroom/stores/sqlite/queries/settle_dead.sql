UPDATE postroom_outbox
SET state = 'dead', stage = 'over', settled_at = :now,
    attempts = json_extract(d.value, '$[2]'), last_error = json_extract(d.value, '$[3]'),
    history = coalesce(json_extract(d.value, '$[4]'), history), next_attempt_at = NULL, lease_owner = NULL, lease_until = NULL
FROM json_each(:dead) AS d
WHERE seq = json_extract(d.value, '$[0]') AND json_extract(d.value, '$[1]') IN (postroom_outbox.id, hex(postroom_outbox.id))
  AND +stream = :stream AND +lane IN (SELECT value FROM json_each(:lanes)) AND stage <> 'over'
