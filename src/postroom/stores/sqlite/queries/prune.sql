-- Done events by time; expired and cancelled ones, which are few, by state.
DELETE FROM postroom_outbox WHERE seq IN (
    SELECT seq FROM (
        SELECT seq FROM postroom_outbox INDEXED BY postroom_outbox_done
        WHERE state = 'done' AND settled_at < :before ORDER BY settled_at LIMIT :limit)
    UNION ALL
    SELECT seq FROM (
        SELECT seq FROM postroom_outbox INDEXED BY postroom_outbox_other
        WHERE (state = 'processing' OR state = 'failed' OR state = 'dead' OR state = 'expired' OR state = 'cancelled')
      AND state IN ('expired', 'cancelled') AND settled_at < :before LIMIT :limit))
