INSERT INTO postroom_counter (topic, key_hash, last) VALUES (:topic, :key_hash, 1)
ON CONFLICT (topic, key_hash) DO UPDATE SET last = last + 1
RETURNING last
