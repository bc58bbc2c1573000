DELETE FROM postroom_outbox WHERE seq IN :seqs AND state IN ('dead', 'expired', 'cancelled')
