UPDATE postroom_outbox FORCE INDEX (PRIMARY)
SET state = 'expired', stage = 'over', settled_at = UTC_TIMESTAMP(6),
    next_attempt_at = NULL, lease_owner = NULL, lease_until = NULL,
    history = (SELECT h.history FROM JSON_TABLE(:histories, '$[*]' COLUMNS (
        number BIGINT PATH '$[0]', history TEXT CHARACTER SET utf8mb4 PATH '$[1]')) AS h WHERE h.number = seq)
WHERE seq IN :seqs AND (seq, id) IN :names AND stream = :stream AND lane IN :lanes
  AND stage <> 'over' AND expires_at <= UTC_TIMESTAMP(6)
