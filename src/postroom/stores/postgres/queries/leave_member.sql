DELETE FROM postroom_member WHERE stream = :stream AND owner = :owner
