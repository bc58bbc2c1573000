SELECT lane, owner, token, until > :now AND until <= :now + 2 * length
FROM postroom_lease WHERE stream = :stream ORDER BY lane
