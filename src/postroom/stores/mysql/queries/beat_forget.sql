DELETE FROM postroom_member
WHERE stream = :stream AND owner IN :owners AND until < UTC_TIMESTAMP(6) - INTERVAL :long_ago MICROSECOND
