INSERT INTO postroom_counter AS c (topic, key_hash, last) VALUES (:topic, :key_hash, 1)
ON CONFLICT (topic, key_hash) DO UPDATE SET last = c.last + 1
RETURNING c.last
