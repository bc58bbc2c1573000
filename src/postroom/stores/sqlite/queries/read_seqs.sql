-- The lowest numbers of each lane, by the index alone; no row is visited.
SELECT (
    SELECT json_group_array(seq) FROM (
        SELECT r.seq FROM postroom_outbox AS r INDEXED BY postroom_outbox_ready
        WHERE r.stream = :stream AND r.lane = l.value AND r.stage = 'ready'
        ORDER BY r.seq LIMIT :per_lane))
FROM json_each(:lanes) AS l
