UPDATE postroom_lease
SET owner = :owner, token = token + 1, length = ABS(:lease), until = UTC_TIMESTAMP(6) + INTERVAL :lease MICROSECOND
WHERE stream = :stream AND lane IN :lanes
