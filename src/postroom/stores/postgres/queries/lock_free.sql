-- A lane whose row is locked is being settled, renewed or taken, and is not free: it is left out, so that a transaction
-- in limbo holds up its own lanes only.
SELECT lane FROM postroom_lease
WHERE stream = :stream AND lane = ANY (CAST(:lanes AS smallint[]))
  AND (owner IS NULL OR until <= clock_timestamp() OR until > clock_timestamp() + 2 * length)
ORDER BY lane FOR NO KEY UPDATE SKIP LOCKED
