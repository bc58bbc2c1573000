-- They stay 'waiting', also if the time has passed: the stager makes them ready.
UPDATE JSON_TABLE(:events, '$[*]' COLUMNS (
    seq BIGINT PATH '$[0]', history TEXT CHARACTER SET utf8mb4 PATH '$[1]')) AS n
STRAIGHT_JOIN postroom_outbox AS o ON o.seq = n.seq
SET o.available_at = DATE'1970-01-01' + INTERVAL :at MICROSECOND,
    o.next_attempt_at = DATE'1970-01-01' + INTERVAL :at MICROSECOND, o.history = coalesce(n.history, o.history)
