UPDATE postroom_outbox
SET state = 'done', stage = 'over', settled_at = :now,
    next_attempt_at = NULL, lease_owner = NULL, lease_until = NULL
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND stage <> 'over'
