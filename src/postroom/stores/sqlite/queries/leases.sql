SELECT lane, owner, token, until > :now AND until <= :horizon FROM postroom_lease WHERE stream = :stream ORDER BY lane
