UPDATE postroom_lease FORCE INDEX (PRIMARY) SET owner = NULL, until = '1970-01-01'
WHERE stream = :stream AND lane IN :lanes AND owner = :owner
