-- Proposed as expired by a relay, but not over by this clock.
SELECT o.seq, o.id FROM json_each(:names) AS n CROSS JOIN postroom_outbox AS o
WHERE o.seq = CAST(n.key AS INTEGER) AND n.value = o.id AND o.stage <> 'over'
  AND (o.expires_at IS NULL OR o.expires_at > :now)
