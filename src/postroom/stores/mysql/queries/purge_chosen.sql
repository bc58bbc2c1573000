-- Events that were never sent and that an operator named; locked, in the order of `chosen_now`.
SELECT seq, CONVERT(id USING utf8mb4) FROM postroom_outbox FORCE INDEX (postroom_outbox_id)
WHERE id IN :ids AND state IN ('dead', 'expired', 'cancelled') ORDER BY seq FOR UPDATE
