UPDATE postroom_lease SET owner = NULL, until = 0 WHERE stream = :stream AND owner = :owner
