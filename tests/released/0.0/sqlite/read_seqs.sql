-- The lowest numbers of each lane, by the index alone; no row is visited. A lane comes with the token
-- by which its reader holds it, or with none: then the lease is not checked.
SELECT (
    SELECT json_group_array(seq) FROM (
        SELECT r.seq FROM postroom_outbox AS r INDEXED BY postroom_outbox_ready
        WHERE r.stream = :stream AND r.lane = json_extract(l.value, '$[0]') AND r.stage = 'ready'
        ORDER BY r.seq LIMIT :per_lane))
FROM json_each(:lanes) AS l
WHERE :owner IS NULL OR EXISTS (
    SELECT 1 FROM postroom_lease AS h WHERE h.stream = :stream AND h.lane = json_extract(l.value, '$[0]')
       AND h.owner = :owner AND h.token = json_extract(l.value, '$[1]'))
