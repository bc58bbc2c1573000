DELETE FROM postroom_member WHERE stream = :stream AND (until < :long_ago OR until > :now + 10 * length)
