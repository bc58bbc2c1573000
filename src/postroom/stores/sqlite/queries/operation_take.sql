-- An end far ahead was written before the clock was set back.
UPDATE postroom_operation SET owner = :owner, until = :until, token = token + 1
WHERE id = :id AND state = 'running'
  AND (owner IS NULL OR owner = :owner OR until IS NULL OR until <= :now OR until > :now + :ahead)
