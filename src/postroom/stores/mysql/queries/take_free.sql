-- A locked row is being settled, renewed or taken, and is not free; a transaction in limbo holds up its own lanes
-- only. An end more than two lengths ahead was written before the clock was set back. UTC_TIMESTAMP is the time at which
-- the statement began: ten seconds more, so that a lease that was given meanwhile is not taken for one of the future.
SELECT lane, token FROM postroom_lease FORCE INDEX (PRIMARY)
WHERE stream = :stream AND lane IN :lanes AND (
    owner IS NULL OR until <= UTC_TIMESTAMP(6) OR until > UTC_TIMESTAMP(6) + INTERVAL 2 * length + 10000000 MICROSECOND)
ORDER BY lane FOR UPDATE SKIP LOCKED
