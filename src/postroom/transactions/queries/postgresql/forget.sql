-- Ends the memory of messages of this consumer alone: after it a repeat of them would be new.
DELETE FROM postroom_inbox WHERE consumer = :consumer AND id = ANY (CAST(:ids AS text[])) AND state = 'done'
