-- Which events have these numbers now.
SELECT seq, id FROM postroom_outbox WHERE seq IN (SELECT value FROM json_each(:seqs))
