-- CONCAT: see settle_delete_returning.
DELETE FROM postroom_outbox
WHERE seq IN :seqs AND (seq, CONCAT(id)) IN :names AND stream = :stream AND lane IN :lanes
  AND stage <> 'over'
