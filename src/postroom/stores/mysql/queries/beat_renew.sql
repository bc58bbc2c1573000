UPDATE postroom_lease FORCE INDEX (PRIMARY)
SET length = ABS(:lease), until = UTC_TIMESTAMP(6) + INTERVAL :lease MICROSECOND
WHERE stream = :stream AND lane IN :lanes
