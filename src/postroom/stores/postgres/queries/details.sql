-- Instants: see postroom_read.
SELECT
    o.stage, o.available_at + interval '946684800 s', o.settled_at + interval '946684800 s', o.lease_owner,
    o.lease_until + interval '946684800 s', b.barrier
FROM postroom_outbox AS o
LEFT JOIN postroom_block AS b ON b.stream = o.stream AND b.lane = o.lane AND b.key_hash = o.key_hash
WHERE o.id = :id
