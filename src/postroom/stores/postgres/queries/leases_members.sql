SELECT owner, healthy, name FROM postroom_member
WHERE stream = :stream AND until > clock_timestamp() AND until <= clock_timestamp() + 2 * length ORDER BY owner
