UPDATE JSON_TABLE(:failed, '$[*]' COLUMNS (
    seq BIGINT PATH '$[0]', id VARCHAR(200) CHARACTER SET ascii PATH '$[1]', attempts INT PATH '$[2]',
    error TEXT CHARACTER SET utf8mb4 PATH '$[3]',
    delay BIGINT PATH '$[4]', history TEXT CHARACTER SET utf8mb4 PATH '$[5]')) AS f
STRAIGHT_JOIN postroom_outbox AS o ON o.seq = f.seq AND o.id = UNHEX(f.id) AND o.stream = :stream AND o.lane IN :lanes
SET o.state = 'failed', o.stage = 'waiting', o.attempts = f.attempts, o.last_error = f.error,
    o.history = COALESCE(f.history, o.history),
    o.next_attempt_at = UTC_TIMESTAMP(6) + INTERVAL f.delay MICROSECOND, o.lease_owner = NULL, o.lease_until = NULL
WHERE o.stage <> 'over'
