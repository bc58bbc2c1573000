SELECT owner, healthy, name FROM postroom_member
WHERE stream = :stream AND until > :now AND until <= :now + 2 * length ORDER BY owner
