-- A live barrier is only ever lowered; one whose event has ended is replaced.
INSERT INTO postroom_block (stream, key_hash, lane, barrier, aggregate_type, `key`, since)
SELECT n.stream, n.key_hash, n.lane, n.barrier, n.aggregate_type, n.`key`, UTC_TIMESTAMP(6)
FROM (
    SELECT o.stream, o.key_hash, o.lane, o.aggregate_type, o.`key`,
        LEAST(o.seq, COALESCE(h.seq, o.seq)) AS barrier
    FROM postroom_outbox AS o FORCE INDEX (PRIMARY)
    LEFT JOIN postroom_block AS b ON b.stream = o.stream AND b.key_hash = o.key_hash
    LEFT JOIN postroom_outbox AS h ON h.seq = b.barrier AND h.stage IN ('ready', 'waiting')
    WHERE o.seq IN :seqs AND (o.seq, o.id) IN :names AND o.stream = :stream AND o.lane IN :lanes
      AND o.stage = 'waiting' AND o.`key` IS NOT NULL
) AS n
ON DUPLICATE KEY UPDATE barrier = n.barrier
