SELECT 1 FROM postroom_outbox INDEXED BY postroom_outbox_parked
WHERE stream = :stream AND key_hash = :key_hash AND stage = 'parked' LIMIT 1
