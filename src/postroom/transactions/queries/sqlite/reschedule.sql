-- It stays 'waiting', also if the time has passed: the stager makes it ready.
UPDATE postroom_outbox
SET available_at = :at_us, next_attempt_at = :at_us
WHERE id = :id AND stage = 'waiting' AND state = 'pending' AND kseq IS NULL
  AND (expires_at IS NULL OR expires_at > :at_us)
RETURNING CAST(stream AS BLOB)
