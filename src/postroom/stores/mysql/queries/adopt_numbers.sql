SELECT COALESCE(MAX(seq), 0) FROM postroom_outbox
