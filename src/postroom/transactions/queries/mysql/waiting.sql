-- Without a lock, by id: under REPEATABLE READ a locking search for an id that does not exist would lock the gap, and
-- stop the writers of new events; and a lock on an event in flight would stop its settle.
SELECT seq FROM postroom_outbox FORCE INDEX (postroom_outbox_id)
WHERE id = :id AND stage = 'waiting' AND state = 'pending' AND kseq IS NULL
