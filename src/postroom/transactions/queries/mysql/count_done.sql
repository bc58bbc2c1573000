-- The pair is repeated for each message.
SELECT count(*) FROM postroom_inbox WHERE state = 'done' AND (consumer, id) IN ((:consumer, :id))
