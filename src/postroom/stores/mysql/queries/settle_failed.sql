UPDATE JSON_TABLE(:failed, '$[*]' COLUMNS (
    seq BIGINT PATH '$[0]', attempts INT PATH '$[1]', error TEXT CHARACTER SET utf8mb4 PATH '$[2]',
    delay BIGINT PATH '$[3]')) AS f
STRAIGHT_JOIN postroom_outbox AS o ON o.seq = f.seq
SET o.state = 'failed', o.stage = 'waiting', o.attempts = f.attempts, o.last_error = f.error,
    o.next_attempt_at = UTC_TIMESTAMP(6) + INTERVAL f.delay MICROSECOND, o.lease_owner = NULL, o.lease_until = NULL
WHERE o.stage <> 'over'
