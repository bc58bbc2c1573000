-- Every count is answered by an index: a partial index proves its own condition.
SELECT 'ready', count(*) FROM postroom_outbox WHERE stream = :stream AND stage = 'ready'
UNION ALL
SELECT 'waiting', count(*) FROM postroom_outbox WHERE stream = :stream AND stage = 'waiting'
UNION ALL
SELECT 'parked', count(*) FROM postroom_outbox WHERE stream = :stream AND stage = 'parked'
UNION ALL
SELECT state, count(*) FROM postroom_outbox
WHERE state IN ('processing', 'failed', 'dead') AND stream = :stream
GROUP BY state
UNION ALL
SELECT 'blocked', count(*) FROM postroom_block WHERE stream = :stream
