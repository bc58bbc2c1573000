-- A receipt is the beginning that all share and its own rest. INTERVAL finds its place in the sorted `places`.
UPDATE postroom_outbox FORCE INDEX (PRIMARY)
SET state = 'done', stage = 'over', settled_at = UTC_TIMESTAMP(6),
    receipt = CONCAT(:beginning, ELT(INTERVAL(seq, :places), :rests)),
    next_attempt_at = NULL, lease_owner = NULL, lease_until = NULL
WHERE seq IN :seqs AND (seq, id) IN :names AND stream = :stream AND lane IN :lanes
  AND stage <> 'over'
