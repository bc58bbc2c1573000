-- The age in seconds of the oldest that could go. The lowest rows of each lane speak for the rest: later rows were
-- written later. The lane as a range: see postroom_read.
SELECT date_part('epoch', clock_timestamp() - min(greatest(o.created_at, o.next_attempt_at)) FILTER (
    WHERE isfinite(greatest(o.created_at, o.next_attempt_at))))
FROM unnest(CAST(:streams AS text[])) AS s (stream) CROSS JOIN generate_series(0, 63) AS l (lane)
CROSS JOIN LATERAL (
    SELECT r.created_at, r.next_attempt_at FROM postroom_outbox AS r
    WHERE r.stream = s.stream AND r.stage = 'ready' AND r.lane >= l.lane AND r.lane <= l.lane
    ORDER BY r.lane, r.seq LIMIT 16) AS o
