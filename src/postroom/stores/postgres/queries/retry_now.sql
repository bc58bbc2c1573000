-- Only what waits for another attempt: rows of these are not in flight, and the stager moves them when they are due.
UPDATE postroom_outbox AS o
SET next_attempt_at = clock_timestamp()
FROM (
    SELECT w.seq FROM postroom_outbox AS w
    WHERE w.id = ANY (CAST(:ids AS text[])) AND w.stage = 'waiting' AND w.state = 'failed'
    ORDER BY w.seq FOR UPDATE) AS chosen
WHERE o.seq = chosen.seq
RETURNING o.id
