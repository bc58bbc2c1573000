SELECT key_hash FROM postroom_outbox FORCE INDEX (postroom_outbox_shelf)
WHERE shelf IN ('ready', 'waiting', 'parked') AND stream = :stream LIMIT :limit
