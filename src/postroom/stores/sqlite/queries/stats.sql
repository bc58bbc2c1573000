-- Every count is answered by an index: a partial index proves its own condition. One stream, or all: from '' to a BLOB,
-- which comes after every text. The states are counted by stream, in the order of their index: nothing is sorted.
SELECT 'ready', count(*) FROM postroom_outbox WHERE stream >= :first AND stream <= :last AND stage = 'ready'
UNION ALL
SELECT 'waiting', count(*) FROM postroom_outbox WHERE stream >= :first AND stream <= :last AND stage = 'waiting'
UNION ALL
SELECT 'parked', count(*) FROM postroom_outbox WHERE stream >= :first AND stream <= :last AND stage = 'parked'
UNION ALL
SELECT state, count(*) FROM postroom_outbox
WHERE (state = 'processing' OR state = 'failed' OR state = 'dead' OR state = 'expired'
    OR state = 'cancelled') AND stream >= :first AND stream <= :last
GROUP BY stream, state
UNION ALL
SELECT 'blocked', count(*) FROM postroom_block WHERE stream >= :first AND stream <= :last
