SELECT last FROM postroom_counter WHERE topic = :topic AND key_hash = :key_hash
