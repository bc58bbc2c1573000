-- `stats_oldest` for any number of streams: the lowest row of each lane speaks for the rest, in one walk over the index.
SELECT TIMESTAMPDIFF(MICROSECOND, MIN(GREATEST(o.created_at, COALESCE(o.next_attempt_at, o.created_at))),
    UTC_TIMESTAMP(6))
FROM (
    SELECT MIN(seq) AS seq FROM postroom_outbox FORCE INDEX (postroom_outbox_shelf)
    WHERE shelf = 'ready' GROUP BY shelf, stream, slot
) AS c STRAIGHT_JOIN postroom_outbox AS o ON o.seq = c.seq
