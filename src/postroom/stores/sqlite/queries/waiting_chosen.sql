-- Waiting events that an operator named: those of this state were never read (pending), or are not in flight (failed).
SELECT seq, id, history FROM postroom_outbox
WHERE id IN (SELECT value FROM json_each(:ids)) AND stage = 'waiting' AND state = :state
  AND (:state = 'failed' OR kseq IS NULL)
  AND (:at IS NULL OR expires_at IS NULL OR expires_at > :at)
ORDER BY seq
