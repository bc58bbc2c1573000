-- A page of dead letters by their index, and whether each died long enough ago.
SELECT seq, settled_at < UTC_TIMESTAMP(6) - INTERVAL :older MICROSECOND
FROM postroom_outbox FORCE INDEX (postroom_outbox_open)
WHERE open_state = 'dead' AND seq > :after_seq AND stream = :stream ORDER BY seq LIMIT :limit
