-- Which events have these numbers now.
SELECT seq, id FROM postroom_outbox FORCE INDEX (PRIMARY) WHERE seq IN :seqs
