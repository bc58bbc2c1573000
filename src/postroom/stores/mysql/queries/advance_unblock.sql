DELETE FROM postroom_block WHERE stream = :stream AND key_hash = :key_hash
