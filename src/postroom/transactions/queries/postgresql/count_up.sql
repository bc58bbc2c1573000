-- The row is locked until the caller's commit, and a rollback takes the numbers back (W9).
INSERT INTO postroom_counter AS c (topic, key_hash, last)
VALUES (:topic, :key_hash, :step)
ON CONFLICT (topic, key_hash) DO UPDATE SET last = c.last + excluded.last
RETURNING c.last
