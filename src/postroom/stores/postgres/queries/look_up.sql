SELECT id, stream, state FROM postroom_outbox WHERE id = ANY (CAST(:ids AS text[]))
