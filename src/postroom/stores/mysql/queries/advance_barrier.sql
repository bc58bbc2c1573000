UPDATE postroom_block SET barrier = :barrier WHERE stream = :stream AND key_hash = :key_hash
