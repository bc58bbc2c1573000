-- The row is locked until the caller's commit, and a rollback takes the numbers back (W9).
-- A step may be negative: the row that is offered must satisfy the table's CHECK even where it is not the one kept.
-- MySQL returns nothing from it: run count_up_read next, in the same transaction, for the new value.
INSERT INTO postroom_counter (topic, key_hash, last)
VALUES (:topic, UNHEX(:key_hash_hex), GREATEST(:step, 0))
ON DUPLICATE KEY UPDATE last = last + :step
