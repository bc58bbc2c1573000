-- Of failed and dead events only.
SELECT seq, history FROM postroom_outbox WHERE seq IN (SELECT value FROM json_each(:seqs))
