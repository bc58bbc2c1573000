-- Only MariaDB returns the deleted rows. On MySQL settle_there looks first. CONCAT leaves one index to choose, the primary
-- key: a DELETE takes no index hint, and by the ids it would combine every id with every number.
DELETE FROM postroom_outbox
WHERE seq IN :seqs AND (seq, CONCAT(id)) IN :names AND stream = :stream AND lane IN :lanes
  AND stage <> 'over'
RETURNING seq, id
