-- Ends the memory of messages that were done long ago: after it a repeat of them would be new.
DELETE FROM postroom_inbox WHERE (consumer, id) IN (
    SELECT consumer, id FROM postroom_inbox
    WHERE state = 'done' AND processed_at < statement_timestamp() - make_interval(secs => :seconds)
    ORDER BY processed_at LIMIT :most)
