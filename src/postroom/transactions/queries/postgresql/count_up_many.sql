-- As `count_up`, for many counters in one statement, locked in the order given. No step is negative here.
INSERT INTO postroom_counter AS c (topic, key_hash, last)
SELECT r.topic, r.key_hash, r.step
FROM unnest(CAST(:topic AS text[]), CAST(:key_hash AS bytea[]), CAST(:step AS bigint[]))
    WITH ORDINALITY AS r (topic, key_hash, step, place)
ORDER BY r.place
ON CONFLICT (topic, key_hash) DO UPDATE SET last = c.last + excluded.last
RETURNING c.topic, c.key_hash, c.last
