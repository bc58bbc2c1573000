-- The next followers of keys whose barrier event has ended, is gone or parked. A key with more of them keeps
-- its block, with the last that came back as its barrier; another one is free. All parts see the state before. The key
-- as a range, for the reason that postroom_read asks for a lane as one.
WITH open AS MATERIALIZED (
    SELECT b.stream, b.lane, b.key_hash FROM unnest(CAST(:keys AS bytea[])) AS k (key_hash)
    JOIN postroom_block AS b
    ON b.stream = :stream AND b.lane = get_byte(k.key_hash, 0) % 64 AND b.key_hash = k.key_hash
    WHERE NOT EXISTS (
        SELECT 1 FROM postroom_outbox AS h WHERE h.seq = b.barrier AND h.stage IN ('ready', 'waiting'))
), next AS MATERIALIZED (
    SELECT k.lane, k.key_hash, n.seq, n.place FROM open AS k
    CROSS JOIN LATERAL (
        SELECT p.seq, row_number() OVER (ORDER BY p.key_hash, p.seq) AS place FROM postroom_outbox AS p
        WHERE p.stream = k.stream AND p.stage = 'parked' AND p.key_hash >= k.key_hash AND p.key_hash <= k.key_hash
        ORDER BY p.key_hash, p.seq LIMIT CAST(:step AS integer) + 1) AS n
), moved AS (
    UPDATE postroom_outbox AS o SET stage = 'ready'
    WHERE o.seq = ANY (ARRAY(SELECT n.seq FROM next AS n WHERE n.place <= CAST(:step AS integer)))
), kept AS (
    UPDATE postroom_block AS b SET barrier = n.seq
    FROM next AS n, next AS more
    WHERE b.stream = :stream AND b.lane = n.lane AND b.key_hash = n.key_hash AND n.place = CAST(:step AS integer)
      AND more.key_hash = n.key_hash AND more.place = CAST(:step AS integer) + 1
), gone AS (
    DELETE FROM postroom_block AS b USING open AS k
    WHERE b.stream = k.stream AND b.lane = k.lane AND b.key_hash = k.key_hash AND NOT EXISTS (
        SELECT 1 FROM next AS n WHERE n.key_hash = k.key_hash AND n.place = CAST(:step AS integer) + 1)
)
SELECT k.lane, (SELECT min(n.seq) FROM next AS n WHERE n.key_hash = k.key_hash) FROM open AS k
