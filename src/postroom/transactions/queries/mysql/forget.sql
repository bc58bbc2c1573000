-- Ends the memory of messages of this consumer alone: after it a repeat of them would be new. The pair is repeated.
DELETE FROM postroom_inbox WHERE state = 'done' AND (consumer, id) IN ((:consumer, :id))
