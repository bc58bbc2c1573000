-- When the next waiting event of these lanes is due (in microseconds from now), and whether any is ready.
SELECT
    TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), MIN((
        SELECT w.next_attempt_at FROM postroom_outbox AS w FORCE INDEX (postroom_outbox_due)
        WHERE w.due_lane = l.lane AND w.stream = :stream ORDER BY w.next_attempt_at LIMIT 1))),
    MAX(EXISTS (SELECT 1 FROM postroom_outbox AS r FORCE INDEX (postroom_outbox_shelf)
                WHERE r.shelf = 'ready' AND r.stream = :stream AND r.slot = l.lane))
FROM JSON_TABLE(:lanes, '$[*]' COLUMNS (lane INT PATH '$')) AS l
