UPDATE postroom_outbox
SET state = 'cancelled', stage = 'over', settled_at = UTC_TIMESTAMP(6), next_attempt_at = NULL
WHERE seq = :seq
