SELECT owner, healthy, name FROM postroom_member
WHERE stream = :stream AND until > clock_timestamp() ORDER BY owner
