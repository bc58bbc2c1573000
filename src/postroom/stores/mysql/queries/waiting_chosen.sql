-- Waiting events that an operator named. Without a lock: a locking search by id would lock gaps.
SELECT seq FROM postroom_outbox FORCE INDEX (postroom_outbox_id)
WHERE id IN :ids AND stage = 'waiting' AND state = :state ORDER BY seq
