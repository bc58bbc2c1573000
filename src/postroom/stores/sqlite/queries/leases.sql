SELECT lane, owner, token, until > :now FROM postroom_lease WHERE stream = :stream ORDER BY lane
