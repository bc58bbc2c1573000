-- The lane as a range: see postroom_read.
SELECT l.lane, (
    SELECT o.seq FROM postroom_outbox AS o
    WHERE o.stream = :stream AND o.stage = 'ready' AND o.lane <= l.lane
      AND (o.lane, o.seq) >= (l.lane, coalesce(l.floor, 0))
    ORDER BY o.lane, o.seq LIMIT 1)
FROM unnest(CAST(:lanes AS smallint[]), postroom_floors(CAST(:floors AS bigint[]), CAST(:epoch AS bigint[])))
    AS l (lane, floor)
