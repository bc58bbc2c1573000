-- Finished events that an operator erases.
DELETE FROM postroom_outbox WHERE id IN (SELECT value FROM json_each(:ids)) AND stage = 'over'
