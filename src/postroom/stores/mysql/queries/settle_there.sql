SELECT seq, id FROM postroom_outbox FORCE INDEX (PRIMARY)
WHERE seq IN :seqs AND (seq, id) IN :names AND stream = :stream AND lane IN :lanes
  AND stage <> 'over'
