-- By number, as the stager and a settle lock rows. Events of this state were never read (pending), or are not in flight (failed).
SELECT seq, CONVERT(id USING utf8mb4), history FROM postroom_outbox FORCE INDEX (PRIMARY)
WHERE seq IN :seqs AND id IN :ids AND stage = 'waiting' AND state = :state
  AND (:state = 'failed' OR kseq IS NULL)
  AND (:at IS NULL OR expires_at IS NULL OR expires_at > DATE'1970-01-01' + INTERVAL :at MICROSECOND)
ORDER BY seq FOR UPDATE
