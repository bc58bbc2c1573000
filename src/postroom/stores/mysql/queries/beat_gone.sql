-- A member that is long gone, unless its row is locked: then it is left to the next beat.
SELECT owner FROM postroom_member WHERE stream = :stream AND owner = :owner FOR UPDATE SKIP LOCKED
