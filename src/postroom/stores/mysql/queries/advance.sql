UPDATE postroom_outbox FORCE INDEX (PRIMARY) SET stage = 'ready' WHERE seq IN :seqs AND stage = 'parked'
