-- The lowest rows of each lane speak for the rest: later rows were written later. The streams as in `streams`.
WITH RECURSIVE
streams (stream) AS (
    SELECT min(stream) FROM postroom_outbox WHERE stage = 'ready' AND stream >= :first AND stream <= :last
    UNION ALL
    SELECT (SELECT min(stream) FROM postroom_outbox WHERE stage = 'ready' AND stream > s.stream AND stream <= :last)
    FROM streams AS s WHERE s.stream IS NOT NULL),
lanes (lane) AS (SELECT 0 UNION ALL SELECT lane + 1 FROM lanes WHERE lane < 63)
SELECT min(max(o.created_at, coalesce(o.next_attempt_at, 0)))
FROM streams AS s CROSS JOIN lanes AS l
CROSS JOIN postroom_outbox AS o ON o.seq IN (
    SELECT r.seq FROM postroom_outbox AS r INDEXED BY postroom_outbox_ready
    WHERE r.stream = s.stream AND r.lane = l.lane AND r.stage = 'ready'
    ORDER BY r.seq LIMIT 16)
