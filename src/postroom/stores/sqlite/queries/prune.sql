DELETE FROM postroom_outbox WHERE seq IN (
    SELECT seq FROM postroom_outbox INDEXED BY postroom_outbox_done
    WHERE state = 'done' AND settled_at < :before ORDER BY settled_at LIMIT :limit)
