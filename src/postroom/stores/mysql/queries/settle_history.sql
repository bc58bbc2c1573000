-- Of failed and dead events only.
SELECT seq, history FROM postroom_outbox FORCE INDEX (PRIMARY) WHERE seq IN :seqs
