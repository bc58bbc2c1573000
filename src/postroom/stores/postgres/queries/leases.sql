SELECT lane, owner, token, until > clock_timestamp() AND until <= clock_timestamp() + 2 * length
FROM postroom_lease WHERE stream = :stream ORDER BY lane
