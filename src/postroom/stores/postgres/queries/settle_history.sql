-- Of failed and dead events only.
SELECT seq, history FROM postroom_outbox WHERE seq = ANY (CAST(:seqs AS bigint[]))
