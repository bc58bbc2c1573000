-- It stays 'waiting', also if the time has passed: only the stager of the lane's owner makes events ready (R6).
UPDATE postroom_outbox
SET available_at = timestamptz 'epoch' + CAST(:at_us AS bigint) * interval '1 microsecond',
    next_attempt_at = timestamptz 'epoch' + CAST(:at_us AS bigint) * interval '1 microsecond'
WHERE id = :id AND stage = 'waiting' AND state = 'pending' AND kseq IS NULL
  AND (expires_at IS NULL OR expires_at > timestamptz 'epoch' + CAST(:at_us AS bigint) * interval '1 microsecond')
RETURNING stream
