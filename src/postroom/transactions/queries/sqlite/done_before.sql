SELECT id FROM postroom_inbox
WHERE consumer = :consumer AND state = 'done' AND processed_at < :before
ORDER BY processed_at LIMIT :limit OFFSET :skip
