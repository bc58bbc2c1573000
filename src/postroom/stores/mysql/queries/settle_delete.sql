DELETE FROM postroom_outbox
WHERE seq IN :seqs AND (seq, id) IN :names AND stream = :stream AND lane IN :lanes
  AND stage <> 'over'
