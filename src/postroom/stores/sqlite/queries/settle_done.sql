-- `rests` is an object: number/id to what follows the beginning that all receipts share. A row is named by both, number
-- and id, here and in the other statements of a settle. The unary plus keeps the planner to the primary key. An id that
-- is not text is addressed by its bytes, in hexadecimal.
UPDATE postroom_outbox
SET state = 'done', stage = 'over', settled_at = :now,
    next_attempt_at = NULL, lease_owner = NULL, lease_until = NULL, receipt = :beginning || n.value
FROM json_each(:rests) AS n
WHERE seq = CAST(n.key AS INTEGER) AND n.key IN (seq || '/' || postroom_outbox.id, seq || '/' || hex(postroom_outbox.id))
  AND +stream = :stream AND +lane IN (SELECT value FROM json_each(:lanes)) AND stage <> 'over'
