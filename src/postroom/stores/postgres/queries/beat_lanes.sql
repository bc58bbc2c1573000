-- The 64 lanes of these streams, created once; in one order, so that concurrent relays do not deadlock. Where they
-- are there nothing is tried: it would wait for every change of a lease that is under way.
INSERT INTO postroom_lease (stream, lane)
SELECT s.stream, l.lane FROM unnest(CAST(:streams AS text[])) AS s (stream), generate_series(0, 63) AS l (lane)
WHERE (SELECT count(*) FROM postroom_lease AS f WHERE f.stream = s.stream) < 64
ORDER BY 1, 2
ON CONFLICT DO NOTHING
