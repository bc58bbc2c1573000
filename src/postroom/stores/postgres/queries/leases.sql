SELECT lane, owner, token, until > clock_timestamp() FROM postroom_lease WHERE stream = :stream ORDER BY lane
