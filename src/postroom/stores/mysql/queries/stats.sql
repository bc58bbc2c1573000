-- Every count is answered by an index.
SELECT shelf, COUNT(*) FROM postroom_outbox FORCE INDEX (postroom_outbox_shelf)
WHERE :stream IS NULL OR (shelf IN ('ready', 'waiting', 'parked', 'dead', 'done', 'expired', 'cancelled')
    AND stream = :stream) GROUP BY shelf
UNION ALL
SELECT CONVERT(open_state USING utf8mb4), COUNT(*) FROM postroom_outbox FORCE INDEX (postroom_outbox_open)
WHERE open_state IN ('processing', 'failed') AND (:stream IS NULL OR stream = :stream) GROUP BY open_state
UNION ALL
SELECT 'blocked', COUNT(*) FROM postroom_block WHERE :stream IS NULL OR stream = :stream
