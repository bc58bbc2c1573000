DELETE FROM postroom_outbox WHERE seq IN (SELECT value FROM json_each(:seqs)) AND stage <> 'over'
