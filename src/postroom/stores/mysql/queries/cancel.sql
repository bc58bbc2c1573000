UPDATE JSON_TABLE(:events, '$[*]' COLUMNS (
    seq BIGINT PATH '$[0]', history TEXT CHARACTER SET utf8mb4 PATH '$[1]')) AS n
STRAIGHT_JOIN postroom_outbox AS o ON o.seq = n.seq
SET o.state = 'cancelled', o.stage = 'over', o.settled_at = UTC_TIMESTAMP(6), o.next_attempt_at = NULL,
    o.history = coalesce(n.history, o.history)
