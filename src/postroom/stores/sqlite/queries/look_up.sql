SELECT id, stream, state, replaced_by FROM postroom_outbox WHERE id IN (SELECT value FROM json_each(:ids))
