UPDATE postroom_lease FORCE INDEX (PRIMARY) SET until = UTC_TIMESTAMP(6) + INTERVAL :lease MICROSECOND
WHERE stream = :stream AND lane IN :lanes AND (lane, token) IN :held AND owner = :owner
