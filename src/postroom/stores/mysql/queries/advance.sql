UPDATE postroom_outbox SET stage = 'ready' WHERE seq IN :seqs AND stage = 'parked'
