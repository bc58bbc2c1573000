-- Waiting events that an operator named, locked: those of this state were never read (pending), or are not in flight (failed).
SELECT seq, id, history FROM postroom_outbox
WHERE id = ANY (CAST(:ids AS text[])) AND stage = 'waiting' AND state = :state
  AND (:state = 'failed' OR kseq IS NULL)
  AND (CAST(:at AS bigint) IS NULL OR expires_at IS NULL
       OR expires_at > timestamptz 'epoch' + CAST(:at AS bigint) * interval '1 microsecond')
ORDER BY seq FOR UPDATE
