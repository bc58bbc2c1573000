-- Of these events the ones that were finished before the operation was started; a time ahead of the clock was written
-- before it was set back.
SELECT o.seq FROM postroom_outbox AS o FORCE INDEX (PRIMARY)
WHERE o.seq IN :seqs AND o.state = :state AND (
    o.settled_at <= (SELECT p.created_at FROM postroom_operation AS p WHERE p.id = :id)
    OR o.settled_at > UTC_TIMESTAMP(6))
