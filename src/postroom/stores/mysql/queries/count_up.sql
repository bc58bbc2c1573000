INSERT INTO postroom_counter (topic, key_hash, last) VALUES (:topic, :key_hash, 1)
ON DUPLICATE KEY UPDATE last = last + 1
