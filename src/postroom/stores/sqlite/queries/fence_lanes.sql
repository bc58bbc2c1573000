-- A relay that has one of these events in flight can no longer settle it (L7).
UPDATE postroom_lease SET token = token + 1, owner = NULL, until = 0
WHERE (stream, lane) IN (
    SELECT stream, lane FROM postroom_outbox WHERE seq IN (SELECT value FROM json_each(:seqs)))
