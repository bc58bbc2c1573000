-- Only behind a block that is still there: a row parked without one would wait for ever.
UPDATE postroom_outbox SET stage = 'parked'
WHERE seq IN (
    SELECT o.seq FROM json_each(:names) AS n CROSS JOIN postroom_outbox AS o
    WHERE o.seq = CAST(n.key AS INTEGER) AND n.value IN (o.id, hex(o.id))
      AND +o.stream = :stream AND +o.lane IN (SELECT value FROM json_each(:lanes))
      AND o.stage = 'ready' AND o.state <> 'processing'
      AND EXISTS (SELECT 1 FROM postroom_block AS b
                  WHERE b.stream = o.stream AND b.key_hash = o.key_hash AND b.barrier < o.seq))
