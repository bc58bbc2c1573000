-- Instants: see postroom_instant.
SELECT
    o.stage, postroom_instant(o.available_at), postroom_instant(o.settled_at), o.lease_owner,
    postroom_instant(o.lease_until), b.barrier, o.history, o.receipt, o.replaced_by
FROM postroom_outbox AS o
LEFT JOIN postroom_block AS b ON b.stream = o.stream AND b.lane = o.lane AND b.key_hash = o.key_hash
WHERE o.id = :id
