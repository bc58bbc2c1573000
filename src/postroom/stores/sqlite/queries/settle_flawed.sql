-- The ids of rows that cannot be events, as they are stored.
SELECT seq, id, hex(id) FROM postroom_outbox WHERE seq IN (SELECT value FROM json_each(:seqs))
