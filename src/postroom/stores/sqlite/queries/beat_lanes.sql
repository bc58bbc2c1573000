-- The 64 lanes of a stream, made once.
INSERT OR IGNORE INTO postroom_lease (stream, lane)
WITH RECURSIVE lanes (lane) AS (SELECT 0 UNION ALL SELECT lane + 1 FROM lanes WHERE lane < 63)
SELECT :stream, lane FROM lanes
