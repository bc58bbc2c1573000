-- Waits for a transaction in limbo under the old token (L5).
SELECT lane, token FROM postroom_lease FORCE INDEX (PRIMARY)
WHERE stream = :stream AND lane IN :lanes AND (lane, token) IN :held AND owner = :owner
ORDER BY lane FOR UPDATE
