-- An end far ahead was written before the clock was set back.
UPDATE postroom_operation
SET owner = :owner, token = token + 1, until = UTC_TIMESTAMP(6) + INTERVAL :microseconds MICROSECOND
WHERE id = :id AND state = 'running' AND (
    owner IS NULL OR owner = :owner OR until IS NULL OR until <= UTC_TIMESTAMP(6)
    OR until > UTC_TIMESTAMP(6) + INTERVAL :ahead MICROSECOND)
