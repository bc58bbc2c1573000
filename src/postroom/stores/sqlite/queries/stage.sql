UPDATE postroom_outbox SET stage = 'ready'
WHERE seq IN (
    SELECT w.seq FROM json_each(:lanes) AS l
    CROSS JOIN postroom_outbox AS w INDEXED BY postroom_outbox_waiting
    ON w.stream = :stream AND w.lane = l.value AND w.stage = 'waiting' AND w.next_attempt_at <= :now
    LIMIT :limit)
