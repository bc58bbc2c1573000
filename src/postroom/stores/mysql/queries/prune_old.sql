-- From the oldest second on; the last one of them is looked at more closely by `prune`.
SELECT seq FROM postroom_outbox FORCE INDEX (postroom_outbox_shelf)
WHERE shelf = :state AND stream = :stream
  AND slot <= TIMESTAMPDIFF(SECOND, '1970-01-01', UTC_TIMESTAMP(6) - INTERVAL :older MICROSECOND)
ORDER BY slot, seq LIMIT :limit
