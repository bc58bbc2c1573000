UPDATE postroom_outbox
SET state = 'expired', stage = 'over', settled_at = :now,
    next_attempt_at = NULL, lease_owner = NULL, lease_until = NULL,
    history = (SELECT json_extract(h.value, '$[1]') FROM json_each(:histories) AS h
               WHERE json_extract(h.value, '$[0]') = postroom_outbox.seq)
WHERE seq IN (
    SELECT o.seq FROM json_each(:names) AS n CROSS JOIN postroom_outbox AS o
    WHERE o.seq = CAST(n.key AS INTEGER) AND n.value IN (o.id, hex(o.id)) AND o.expires_at <= :now
      AND +o.stream = :stream AND +o.lane IN (SELECT value FROM json_each(:lanes)) AND o.stage <> 'over')
