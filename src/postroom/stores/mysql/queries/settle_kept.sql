-- Proposed as expired by a relay, but not over by this clock.
SELECT seq, id FROM postroom_outbox FORCE INDEX (PRIMARY)
WHERE seq IN :seqs AND (seq, id) IN :names AND stream = :stream AND lane IN :lanes AND stage <> 'over'
  AND (expires_at IS NULL OR expires_at > UTC_TIMESTAMP(6))
