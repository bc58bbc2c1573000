DELETE FROM postroom_member
WHERE stream = :stream AND owner = :owner AND (
    until < UTC_TIMESTAMP(6) - INTERVAL :long_ago MICROSECOND
    OR until > UTC_TIMESTAMP(6) + INTERVAL 10 * length MICROSECOND)
