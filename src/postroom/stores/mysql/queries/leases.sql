SELECT lane, owner, token,
    until > UTC_TIMESTAMP(6) AND until <= UTC_TIMESTAMP(6) + INTERVAL 2 * length + 10000000 MICROSECOND
FROM postroom_lease WHERE stream = :stream ORDER BY lane
