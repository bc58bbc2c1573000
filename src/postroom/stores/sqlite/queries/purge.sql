-- Events that were never sent and that an operator named.
DELETE FROM postroom_outbox
WHERE id IN (SELECT value FROM json_each(:ids)) AND state IN ('dead', 'expired', 'cancelled')
RETURNING id
