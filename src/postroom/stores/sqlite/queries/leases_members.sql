SELECT owner, healthy, name FROM postroom_member
WHERE stream = :stream AND until > :now AND until <= :horizon ORDER BY owner
