-- A live barrier is only ever lowered; one whose event has ended is replaced.
INSERT INTO postroom_block (stream, key_hash, lane, barrier, aggregate_type, key, since)
SELECT stream, key_hash, lane, seq, aggregate_type, key, :now
FROM postroom_outbox
WHERE seq IN (
    SELECT o.seq FROM json_each(:names) AS n CROSS JOIN postroom_outbox AS o
    WHERE o.seq = CAST(n.key AS INTEGER) AND n.value IN (o.id, hex(o.id))
      AND +o.stream = :stream AND +o.lane IN (SELECT value FROM json_each(:lanes)))
  AND stage = 'waiting' AND key IS NOT NULL
ON CONFLICT (stream, key_hash) DO UPDATE SET barrier = CASE
    WHEN EXISTS (SELECT 1 FROM postroom_outbox AS h
                 WHERE h.seq = postroom_block.barrier AND h.stage IN ('ready', 'waiting'))
    THEN min(postroom_block.barrier, excluded.barrier)
    ELSE excluded.barrier END
