-- Events that were never sent and that an operator named. In the order in which `chosen` locks them.
DELETE FROM postroom_outbox WHERE seq = ANY (ARRAY(
    SELECT o.seq FROM postroom_outbox AS o
    WHERE o.id = ANY (CAST(:ids AS text[])) AND o.state IN ('dead', 'expired', 'cancelled')
    ORDER BY o.seq FOR UPDATE))
RETURNING id
