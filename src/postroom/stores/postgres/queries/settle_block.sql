-- A live barrier is only ever lowered; one whose event has ended is replaced. One row for each key: PostgreSQL refuses
-- to change a row twice in one statement.
INSERT INTO postroom_block AS b (stream, lane, key_hash, barrier, aggregate_type, key, since)
SELECT DISTINCT ON (o.stream, o.lane, o.key_hash)
    o.stream, o.lane, o.key_hash, o.seq, o.aggregate_type, o.key, clock_timestamp()
FROM unnest(CAST(:seqs AS bigint[]), CAST(:ids AS text[])) AS n (seq, id)
JOIN postroom_outbox AS o ON o.seq = n.seq AND o.id = n.id
WHERE o.stream = :stream AND o.lane = ANY (CAST(:lanes AS smallint[])) AND o.stage = 'waiting' AND o.key IS NOT NULL
ORDER BY o.stream, o.lane, o.key_hash, o.seq
ON CONFLICT (stream, lane, key_hash) DO UPDATE SET barrier = CASE
    WHEN EXISTS (SELECT 1 FROM postroom_outbox AS h WHERE h.seq = b.barrier AND h.stage IN ('ready', 'waiting'))
    THEN least(b.barrier, excluded.barrier)
    ELSE excluded.barrier END
