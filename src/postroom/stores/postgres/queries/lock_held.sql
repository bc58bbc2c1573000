-- First the locks, in the order of the lanes: an UPDATE takes them in any order, and two would deadlock. Locked
-- lanes are left out: one lane must not hold up the others.
SELECT lane FROM postroom_lease
WHERE stream = :stream AND lane = ANY (CAST(:lanes AS smallint[])) AND owner = :owner
  AND token = (CAST(:tokens AS bigint[]))[array_position(CAST(:lanes AS smallint[]), lane)]
ORDER BY lane FOR NO KEY UPDATE SKIP LOCKED
