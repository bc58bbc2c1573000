SELECT value FROM postroom_meta WHERE name = 'outbox_id'
