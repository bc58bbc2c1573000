-- Of these events the ones that were finished before the operation was started; a time ahead of the clock was written
-- before it was set back.
SELECT o.seq FROM postroom_outbox AS o, postroom_operation AS p
WHERE p.id = :id AND o.seq IN (SELECT value FROM json_each(:seqs)) AND o.state = :state
  AND (o.settled_at <= p.created_at OR o.settled_at > :now)
