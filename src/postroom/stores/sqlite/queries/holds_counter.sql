SELECT 1 FROM postroom_counter WHERE topic = :topic AND key_hash = :key_hash AND last >= :number
