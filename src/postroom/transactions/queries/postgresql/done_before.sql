SELECT id FROM postroom_inbox
WHERE consumer = :consumer AND state = 'done'
    AND processed_at < statement_timestamp() - make_interval(secs => :seconds)
ORDER BY processed_at LIMIT :limit OFFSET :skip
