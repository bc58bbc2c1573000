UPDATE postroom_outbox SET stage = 'ready'
WHERE seq IN (
    SELECT w.seq FROM postroom_outbox AS w INDEXED BY postroom_outbox_waiting
    WHERE w.stream = :stream AND w.lane = :lane AND w.stage = 'waiting' AND w.next_attempt_at <= :now
    ORDER BY w.next_attempt_at LIMIT :most)
