-- The first statement of a settle (L2). It writes the rows, so that no other relay can take a lane before the commit; it
-- always changes the rows it finds, so that the count is the same with the FOUND_ROWS flag and without.
UPDATE postroom_lease FORCE INDEX (PRIMARY) SET settles = settles + 1
WHERE stream = :stream AND lane IN :lanes AND (lane, token) IN :held AND owner = :owner AND until > UTC_TIMESTAMP(6)
