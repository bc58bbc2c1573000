DELETE FROM postroom_outbox WHERE seq = ANY (CAST(:seqs AS bigint[])) AND stage <> 'over'
