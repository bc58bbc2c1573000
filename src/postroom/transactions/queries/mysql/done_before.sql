SELECT id FROM postroom_inbox
WHERE consumer = :consumer AND state = 'done'
    AND processed_at < UTC_TIMESTAMP(6) - INTERVAL :seconds SECOND
ORDER BY processed_at LIMIT :limit OFFSET :skip
