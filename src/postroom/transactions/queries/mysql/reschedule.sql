-- It stays 'waiting', also if the time has passed: the stager makes it ready.
UPDATE postroom_outbox
SET available_at = DATE'1970-01-01' + INTERVAL :at_us MICROSECOND,
    next_attempt_at = DATE'1970-01-01' + INTERVAL :at_us MICROSECOND
WHERE seq = :seq
