SELECT lane FROM postroom_lease WHERE stream = :stream AND owner = :owner ORDER BY lane FOR NO KEY UPDATE SKIP LOCKED
