-- When the next waiting event of these lanes is due (in microseconds from now), and whether any is ready. The first
-- needs a step into each lane, unless nothing waits anywhere; the second ends at the first lane that has something. A
-- zero date, from which nothing can be computed, is due.
SELECT
    IF(EXISTS (SELECT 1 FROM postroom_outbox FORCE INDEX (postroom_outbox_due) WHERE due_lane >= 0), (
        SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), GREATEST(TIMESTAMP'1970-01-01 00:00:00', MIN((
            SELECT w.next_attempt_at FROM postroom_outbox AS w FORCE INDEX (postroom_outbox_due)
            WHERE w.due_lane = l.lane AND w.stream = :stream ORDER BY w.next_attempt_at LIMIT 1))))
        FROM JSON_TABLE(:each_lane, '$[*]' COLUMNS (lane INT PATH '$')) AS l), NULL),
    EXISTS (SELECT 1 FROM postroom_outbox FORCE INDEX (postroom_outbox_shelf)
            WHERE shelf = 'ready' AND stream = :stream AND slot IN :lanes)
