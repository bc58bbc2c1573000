SELECT seq FROM postroom_outbox FORCE INDEX (postroom_outbox_due)
WHERE due_lane = :lane AND stream = :stream AND next_attempt_at <= UTC_TIMESTAMP(6)
ORDER BY next_attempt_at LIMIT :most
