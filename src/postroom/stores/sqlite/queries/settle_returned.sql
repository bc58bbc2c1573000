UPDATE postroom_outbox
SET state = 'pending', attempts = max(attempts - 1, 0), lease_owner = NULL, lease_until = NULL
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = 'processing'
