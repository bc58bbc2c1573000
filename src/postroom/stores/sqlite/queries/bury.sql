UPDATE postroom_outbox
SET state = 'dead', stage = 'over', settled_at = :now, last_error = :reason,
    next_attempt_at = NULL, lease_owner = NULL, lease_until = NULL
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND stage <> 'over'
