-- From name to name over the indexes that begin with the stream. Done events have been leased.
WITH RECURSIVE
leased (stream) AS (
    SELECT min(stream) FROM postroom_lease
    UNION ALL
    SELECT (SELECT min(stream) FROM postroom_lease WHERE stream > s.stream)
    FROM leased AS s WHERE s.stream IS NOT NULL),
ready (stream) AS (
    SELECT min(stream) FROM postroom_outbox WHERE stage = 'ready'
    UNION ALL
    SELECT (SELECT min(stream) FROM postroom_outbox WHERE stage = 'ready' AND stream > s.stream)
    FROM ready AS s WHERE s.stream IS NOT NULL),
waiting (stream) AS (
    SELECT min(stream) FROM postroom_outbox WHERE stage = 'waiting'
    UNION ALL
    SELECT (SELECT min(stream) FROM postroom_outbox WHERE stage = 'waiting' AND stream > s.stream)
    FROM waiting AS s WHERE s.stream IS NOT NULL),
parked (stream) AS (
    SELECT min(stream) FROM postroom_outbox WHERE stage = 'parked'
    UNION ALL
    SELECT (SELECT min(stream) FROM postroom_outbox WHERE stage = 'parked' AND stream > s.stream)
    FROM parked AS s WHERE s.stream IS NOT NULL),
other (stream) AS (
    SELECT min(stream) FROM postroom_outbox WHERE (state = 'processing' OR state = 'failed' OR state = 'dead' OR state = 'expired'
    OR state = 'cancelled')
    UNION ALL
    SELECT (SELECT min(stream) FROM postroom_outbox WHERE (state = 'processing' OR state = 'failed' OR state = 'dead' OR state = 'expired'
    OR state = 'cancelled') AND stream > s.stream)
    FROM other AS s WHERE s.stream IS NOT NULL)
SELECT stream FROM leased WHERE stream IS NOT NULL
UNION
SELECT stream FROM ready WHERE stream IS NOT NULL
UNION
SELECT stream FROM waiting WHERE stream IS NOT NULL
UNION
SELECT stream FROM parked WHERE stream IS NOT NULL
UNION
SELECT stream FROM other WHERE stream IS NOT NULL
ORDER BY stream
