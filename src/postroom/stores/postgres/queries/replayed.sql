-- Finished events are not in flight, so the owners keep their lanes. A settle in doubt about one of these events is not
-- repeated (replayed_at), and reads begin no higher than the lowest of them (replayed).
UPDATE postroom_lease AS f
SET replayed_at = clock_timestamp(), replayed = least(f.replayed, c.lowest)
FROM (
    SELECT o.stream, o.lane, min(o.seq) AS lowest FROM postroom_outbox AS o
    WHERE o.seq = ANY (CAST(:seqs AS bigint[])) GROUP BY o.stream, o.lane) AS c
WHERE f.stream = c.stream AND f.lane = c.lane
