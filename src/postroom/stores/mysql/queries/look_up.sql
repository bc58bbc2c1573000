SELECT id, stream, state, replaced_by FROM postroom_outbox FORCE INDEX (postroom_outbox_id) WHERE id IN :ids
