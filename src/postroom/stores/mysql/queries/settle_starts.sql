-- `attempts` is set from the value that was read, so that a repeated settle counts once.
UPDATE JSON_TABLE(:starts, '$[*]' COLUMNS (seq BIGINT PATH '$[0]', id VARCHAR(200) CHARACTER SET ascii PATH '$[1]', attempts INT PATH '$[2]')) AS s
STRAIGHT_JOIN postroom_outbox AS o ON o.seq = s.seq AND o.id = UNHEX(s.id) AND o.stream = :stream AND o.lane IN :lanes
SET o.state = 'processing', o.lease_owner = :owner, o.lease_until = UTC_TIMESTAMP(6) + INTERVAL :lease MICROSECOND,
    o.attempts = GREATEST(o.attempts, LEAST(s.attempts + 1, 999999))
WHERE o.stage = 'ready'
