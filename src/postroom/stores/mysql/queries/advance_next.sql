-- One more than a step, to see whether any will be left.
SELECT seq FROM postroom_outbox FORCE INDEX (postroom_outbox_parked)
WHERE parked_key = :key_hash AND stream = :stream ORDER BY seq LIMIT :step
