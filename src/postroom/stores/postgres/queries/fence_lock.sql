-- The lanes of events that an operator named.
SELECT f.stream, f.lane FROM postroom_lease AS f
WHERE (f.stream, f.lane) IN (
    SELECT o.stream, o.lane FROM postroom_outbox AS o WHERE o.id = ANY (CAST(:ids AS text[])))
ORDER BY f.stream, f.lane FOR NO KEY UPDATE
