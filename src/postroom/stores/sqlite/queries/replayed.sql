-- Finished events are not in flight, so the owners keep their lanes; a settle in doubt about it is not repeated.
UPDATE postroom_lease SET replayed_at = :now
WHERE (stream, lane) IN (
    SELECT stream, lane FROM postroom_outbox WHERE seq IN (SELECT value FROM json_each(:seqs)))
