UPDATE postroom_outbox SET next_attempt_at = :now
WHERE id IN (SELECT value FROM json_each(:ids)) AND stage = 'waiting' AND state = 'failed'
RETURNING id
