UPDATE postroom_outbox FORCE INDEX (PRIMARY)
SET state = 'pending', stage = 'ready', attempts = 0, settled_at = '9999-12-31', next_attempt_at = NULL,
    expires_at = NULL, receipt = NULL
WHERE seq IN :seqs AND stage = 'over'
