-- Waits for a settle that has begun before the lease ran out.
SELECT lane FROM postroom_lease
WHERE stream = :stream AND lane = ANY (CAST(:lanes AS smallint[]))
  AND (owner IS NULL OR until <= clock_timestamp())
ORDER BY lane FOR NO KEY UPDATE
