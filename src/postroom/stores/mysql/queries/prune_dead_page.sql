-- A page of dead letters by their index, and whether each died long enough ago. A number of strict order stays:
-- consumers wait for it.
SELECT seq, settled_at < UTC_TIMESTAMP(6) - INTERVAL :older MICROSECOND AND COALESCE(kseq, 0) = 0
FROM postroom_outbox FORCE INDEX (postroom_outbox_open)
WHERE open_state = 'dead' AND seq > :after_seq AND stream = :stream ORDER BY seq LIMIT :limit
