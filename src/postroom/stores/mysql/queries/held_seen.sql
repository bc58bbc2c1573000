SELECT lane, token FROM postroom_lease FORCE INDEX (PRIMARY)
WHERE stream = :stream AND lane IN :lanes AND (lane, token) IN :held AND owner = :owner
