SELECT o.stage, o.available_at, o.settled_at, o.lease_owner, o.lease_until, b.barrier, o.history, o.receipt, o.replaced_by
FROM postroom_outbox AS o LEFT JOIN postroom_block AS b ON b.stream = o.stream AND b.key_hash = o.key_hash
WHERE o.id = :id
