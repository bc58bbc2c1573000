INSERT INTO postroom_member (stream, owner, name, healthy, length, until)
VALUES (:stream, :owner, :name, :healthy, ABS(:lease), UTC_TIMESTAMP(6) + INTERVAL :lease MICROSECOND)
ON DUPLICATE KEY UPDATE name = :name, healthy = :healthy, length = ABS(:lease),
    until = UTC_TIMESTAMP(6) + INTERVAL :lease MICROSECOND
