-- Only MariaDB returns the deleted rows. On MySQL settle_there looks first.
DELETE FROM postroom_outbox
WHERE seq IN :seqs AND (seq, id) IN :names AND stream = :stream AND lane IN :lanes
  AND stage <> 'over'
RETURNING seq, id
