UPDATE JSON_TABLE(:dead, '$[*]' COLUMNS (
    seq BIGINT PATH '$[0]', id VARCHAR(200) CHARACTER SET ascii PATH '$[1]', attempts INT PATH '$[2]',
    error TEXT CHARACTER SET utf8mb4 PATH '$[3]', history TEXT CHARACTER SET utf8mb4 PATH '$[4]')) AS d
STRAIGHT_JOIN postroom_outbox AS o ON o.seq = d.seq AND o.id = UNHEX(d.id) AND o.stream = :stream AND o.lane IN :lanes
SET o.state = 'dead', o.stage = 'over', o.settled_at = UTC_TIMESTAMP(6), o.attempts = d.attempts,
    o.last_error = d.error, o.history = COALESCE(d.history, o.history), o.next_attempt_at = NULL, o.lease_owner = NULL, o.lease_until = NULL
WHERE o.stage <> 'over'
