-- A page of dead letters by their index, and whether each died long enough ago. A number of strict order stays:
-- consumers wait for it.
SELECT seq, settled_at < :before AND coalesce(kseq, 0) = 0 FROM postroom_outbox INDEXED BY postroom_outbox_other
WHERE (state = 'processing' OR state = 'failed' OR state = 'dead' OR state = 'expired' OR state = 'cancelled')
  AND state = 'dead' AND stream = :stream AND seq > :after_seq
ORDER BY seq LIMIT :limit
