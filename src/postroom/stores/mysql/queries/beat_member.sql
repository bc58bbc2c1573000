INSERT INTO postroom_member (stream, owner, name, healthy, until)
VALUES (:stream, :owner, :name, :healthy, UTC_TIMESTAMP(6) + INTERVAL :lease MICROSECOND)
ON DUPLICATE KEY UPDATE name = :name, healthy = :healthy, until = UTC_TIMESTAMP(6) + INTERVAL :lease MICROSECOND
