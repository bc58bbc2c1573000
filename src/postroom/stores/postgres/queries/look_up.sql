SELECT id, stream, state, replaced_by FROM postroom_outbox WHERE id = ANY (CAST(:ids AS text[]))
