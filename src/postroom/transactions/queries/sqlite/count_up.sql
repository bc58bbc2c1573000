-- The row is locked until the caller's commit, and a rollback takes the numbers back (W9).
-- A step may be negative: the row that is offered must satisfy the table's CHECK even where it is not the one kept.
INSERT INTO postroom_counter (topic, key_hash, last)
VALUES (:topic, :key_hash, max(:step, 0))
ON CONFLICT (topic, key_hash) DO UPDATE SET last = last + :step
RETURNING last
