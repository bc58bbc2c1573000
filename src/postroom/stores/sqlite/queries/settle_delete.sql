DELETE FROM postroom_outbox
WHERE seq IN (
    SELECT o.seq FROM json_each(:names) AS n CROSS JOIN postroom_outbox AS o
    WHERE o.seq = CAST(n.key AS INTEGER) AND n.value IN (o.id, hex(o.id))
      AND +o.stream = :stream AND +o.lane IN (SELECT value FROM json_each(:lanes)) AND o.stage <> 'over')
RETURNING seq, id
