-- Finished events that an operator erases. In the order in which `chosen` locks them.
DELETE FROM postroom_outbox WHERE seq = ANY (ARRAY(
    SELECT o.seq FROM postroom_outbox AS o
    WHERE o.id = ANY (CAST(:ids AS text[])) AND o.stage = 'over'
    ORDER BY o.seq FOR UPDATE))
