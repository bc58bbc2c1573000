-- Every count is answered by an index: a partial index proves its own condition. All streams in one statement.
SELECT 'ready', count(*) FROM postroom_outbox WHERE stream = ANY(CAST(:streams AS text[])) AND stage = 'ready'
UNION ALL
SELECT 'waiting', count(*) FROM postroom_outbox WHERE stream = ANY(CAST(:streams AS text[])) AND stage = 'waiting'
UNION ALL
SELECT 'parked', count(*) FROM postroom_outbox WHERE stream = ANY(CAST(:streams AS text[])) AND stage = 'parked'
UNION ALL
SELECT state, count(*) FROM postroom_outbox
WHERE state IN ('processing', 'failed', 'dead', 'expired', 'cancelled') AND stream = ANY(CAST(:streams AS text[]))
GROUP BY state
UNION ALL
SELECT 'blocked', count(*) FROM postroom_block WHERE stream = ANY(CAST(:streams AS text[]))
