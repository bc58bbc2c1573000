UPDATE postroom_lease SET owner = :owner, token = token + 1, until = :until, length = :length
WHERE stream = :stream AND lane IN (SELECT value FROM json_each(:lanes))
  AND (owner IS NULL OR until <= :now OR until > :now + 2 * length)
RETURNING lane, token
