-- Ends the memory of a message of this consumer alone: after it a repeat of it would be new.
DELETE FROM postroom_inbox WHERE consumer = :consumer AND id = :id AND state = 'done'
