UPDATE postroom_outbox FORCE INDEX (PRIMARY) SET stage = 'ready'
WHERE seq IN :seqs AND stage = 'waiting' AND next_attempt_at <= UTC_TIMESTAMP(6)
