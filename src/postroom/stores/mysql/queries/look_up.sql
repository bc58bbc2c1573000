SELECT id, stream, state FROM postroom_outbox FORCE INDEX (postroom_outbox_id) WHERE id IN :ids
