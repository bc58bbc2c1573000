UPDATE JSON_TABLE(:done, '$[*]' COLUMNS (
    seq BIGINT PATH '$[0]', id VARCHAR(200) CHARACTER SET ascii PATH '$[1]', receipt VARCHAR(500) CHARACTER SET ascii PATH '$[2]')) AS d
STRAIGHT_JOIN postroom_outbox AS o ON o.seq = d.seq AND o.id = UNHEX(d.id) AND o.stream = :stream AND o.lane IN :lanes
SET o.state = 'done', o.stage = 'over', o.settled_at = UTC_TIMESTAMP(6), o.receipt = d.receipt,
    o.next_attempt_at = NULL, o.lease_owner = NULL, o.lease_until = NULL
WHERE o.stage <> 'over'
