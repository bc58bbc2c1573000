SELECT id, stream, state FROM postroom_outbox WHERE id IN (SELECT value FROM json_each(:ids))
