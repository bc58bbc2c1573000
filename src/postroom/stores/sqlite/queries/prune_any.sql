SELECT 1 FROM postroom_outbox INDEXED BY postroom_outbox_done
WHERE state = 'done' AND settled_at < :before LIMIT 1
