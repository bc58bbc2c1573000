-- Which events have these numbers now.
SELECT seq, id FROM postroom_outbox WHERE seq = ANY (CAST(:seqs AS bigint[]))
