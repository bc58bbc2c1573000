UPDATE postroom_outbox
SET state = 'pending', stage = 'ready', attempts = 0, settled_at = NULL, next_attempt_at = NULL,
    expires_at = NULL, receipt = NULL
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND stage = 'over'
