UPDATE postroom_outbox FORCE INDEX (PRIMARY)
SET state = 'expired', stage = 'over', settled_at = UTC_TIMESTAMP(6),
    next_attempt_at = NULL, lease_owner = NULL, lease_until = NULL
WHERE seq IN :seqs AND (seq, id) IN :names AND stream = :stream AND lane IN :lanes
  AND stage <> 'over' AND expires_at <= UTC_TIMESTAMP(6)
