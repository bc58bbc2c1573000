-- Unfinished events are in these three indexes.
SELECT * FROM (SELECT key_hash FROM postroom_outbox WHERE stage = 'ready' AND stream = :stream LIMIT :limit) AS r
UNION ALL
SELECT * FROM (SELECT key_hash FROM postroom_outbox WHERE stage = 'waiting' AND stream = :stream LIMIT :limit) AS w
UNION ALL
SELECT * FROM (SELECT key_hash FROM postroom_outbox WHERE stage = 'parked' AND stream = :stream LIMIT :limit) AS p
LIMIT :limit
