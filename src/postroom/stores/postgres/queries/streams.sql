-- From name to name over the indexes that begin with the stream. Done events have been leased.
WITH RECURSIVE
leased (stream) AS (
    (SELECT t.stream FROM postroom_lease AS t ORDER BY t.stream LIMIT 1)
    UNION ALL
    SELECT (SELECT t.stream FROM postroom_lease AS t WHERE t.stream > s.stream ORDER BY t.stream LIMIT 1)
    FROM leased AS s WHERE s.stream IS NOT NULL),
ready (stream) AS (
    (SELECT t.stream FROM postroom_outbox AS t WHERE stage = 'ready' ORDER BY t.stream LIMIT 1)
    UNION ALL
    SELECT (SELECT t.stream FROM postroom_outbox AS t WHERE stage = 'ready' AND t.stream > s.stream ORDER BY t.stream LIMIT 1)
    FROM ready AS s WHERE s.stream IS NOT NULL),
waiting (stream) AS (
    (SELECT t.stream FROM postroom_outbox AS t WHERE stage = 'waiting' ORDER BY t.stream LIMIT 1)
    UNION ALL
    SELECT (SELECT t.stream FROM postroom_outbox AS t WHERE stage = 'waiting' AND t.stream > s.stream ORDER BY t.stream LIMIT 1)
    FROM waiting AS s WHERE s.stream IS NOT NULL),
parked (stream) AS (
    (SELECT t.stream FROM postroom_outbox AS t WHERE stage = 'parked' ORDER BY t.stream LIMIT 1)
    UNION ALL
    SELECT (SELECT t.stream FROM postroom_outbox AS t WHERE stage = 'parked' AND t.stream > s.stream ORDER BY t.stream LIMIT 1)
    FROM parked AS s WHERE s.stream IS NOT NULL),
other (stream) AS (
    (SELECT t.stream FROM postroom_outbox AS t WHERE state IN ('processing', 'failed', 'dead', 'expired', 'cancelled') ORDER BY t.stream LIMIT 1)
    UNION ALL
    SELECT (SELECT t.stream FROM postroom_outbox AS t WHERE state IN ('processing', 'failed', 'dead', 'expired', 'cancelled') AND t.stream > s.stream ORDER BY t.stream LIMIT 1)
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
