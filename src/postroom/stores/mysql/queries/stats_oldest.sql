-- The lowest rows of each lane speak for the rest: later rows were written later. {lanes} is read_lane for each.
SELECT TIMESTAMPDIFF(MICROSECOND, MIN(GREATEST(o.created_at, COALESCE(o.next_attempt_at, o.created_at))),
    UTC_TIMESTAMP(6))
FROM ({lanes}) AS c STRAIGHT_JOIN postroom_outbox AS o ON o.seq = c.seq
