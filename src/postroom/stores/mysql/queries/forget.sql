DELETE FROM postroom_outbox WHERE seq IN :seqs AND stage = 'over'
