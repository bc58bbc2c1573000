-- The write lock is held and the clock was read after it: no other relay can take a lane before the commit.
SELECT lane, token FROM postroom_lease WHERE stream = :stream AND owner = :owner AND until > :now
