-- The 64 lanes of a stream, made once; by all in the same order. Where they are it changes nothing.
INSERT INTO postroom_lease (stream, lane)
SELECT :stream, l.lane FROM JSON_TABLE(:lanes, '$[*]' COLUMNS (lane INT PATH '$')) AS l
ON DUPLICATE KEY UPDATE lane = l.lane
