-- The lowest rows of each lane speak for the rest: later rows were written later.
WITH RECURSIVE lanes (lane) AS (SELECT 0 UNION ALL SELECT lane + 1 FROM lanes WHERE lane < 63)
SELECT min(max(o.created_at, coalesce(o.next_attempt_at, 0)))
FROM lanes AS l
CROSS JOIN postroom_outbox AS o ON o.seq IN (
    SELECT r.seq FROM postroom_outbox AS r INDEXED BY postroom_outbox_ready
    WHERE r.stream = :stream AND r.lane = l.lane AND r.stage = 'ready'
    ORDER BY r.seq LIMIT 16)
