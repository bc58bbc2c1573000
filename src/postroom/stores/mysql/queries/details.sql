SELECT o.stage, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.available_at),
    CASE WHEN o.stage = 'over' THEN TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.settled_at) END,
    CONVERT(o.lease_owner USING utf8mb4), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.lease_until), b.barrier, o.history, o.receipt,
    CONVERT(o.replaced_by USING utf8mb4)
FROM postroom_outbox AS o LEFT JOIN postroom_block AS b ON b.stream = o.stream AND b.key_hash = o.key_hash
WHERE o.id = :id
