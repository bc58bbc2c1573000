UPDATE JSON_TABLE(:events, '$[*]' COLUMNS (
    seq BIGINT PATH '$[0]', history TEXT CHARACTER SET utf8mb4 PATH '$[1]')) AS n
STRAIGHT_JOIN postroom_outbox AS o ON o.seq = n.seq
SET o.state = 'pending', o.stage = 'ready', o.attempts = 0, o.settled_at = '9999-12-31', o.next_attempt_at = NULL,
    o.expires_at = NULL, o.receipt = NULL, o.history = n.history
WHERE o.stage = 'over'
