DELETE FROM postroom_outbox
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = 'dead' AND settled_at < :before
