SELECT seq FROM postroom_outbox FORCE INDEX (postroom_outbox_due)
WHERE due_lane IN :lanes AND stream = :stream AND next_attempt_at <= UTC_TIMESTAMP(6) LIMIT :limit
