-- When the next waiting event of these lanes is due, and whether any is ready.
SELECT
    min((SELECT w.next_attempt_at FROM postroom_outbox AS w INDEXED BY postroom_outbox_waiting
         WHERE w.stream = :stream AND w.lane = l.value AND w.stage = 'waiting'
         ORDER BY w.next_attempt_at LIMIT 1)),
    max(EXISTS (SELECT 1 FROM postroom_outbox AS r INDEXED BY postroom_outbox_ready
                WHERE r.stream = :stream AND r.lane = l.value AND r.stage = 'ready'))
FROM json_each(:lanes) AS l
