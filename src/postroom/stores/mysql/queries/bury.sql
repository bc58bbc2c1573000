UPDATE postroom_outbox FORCE INDEX (PRIMARY)
SET state = 'dead', stage = 'over', settled_at = UTC_TIMESTAMP(6), last_error = :reason,
    next_attempt_at = NULL, lease_owner = NULL, lease_until = NULL
WHERE seq IN :seqs AND stage <> 'over'
