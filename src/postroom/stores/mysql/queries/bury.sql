UPDATE JSON_TABLE(:events, '$[*]' COLUMNS (
    seq BIGINT PATH '$[0]', history TEXT CHARACTER SET utf8mb4 PATH '$[1]')) AS n
STRAIGHT_JOIN postroom_outbox AS o ON o.seq = n.seq
SET o.state = 'dead', o.stage = 'over', o.settled_at = UTC_TIMESTAMP(6), o.last_error = :reason, o.history = n.history,
    o.attempts = COALESCE(:attempts, o.attempts), o.available_at = IF(:attempts IS NULL, o.available_at, NULL),
    o.next_attempt_at = NULL, o.lease_owner = NULL, o.lease_until = NULL
WHERE o.stage <> 'over'
