-- Finished events that an operator erases; locked, in the order of `chosen_now`.
SELECT seq FROM postroom_outbox FORCE INDEX (postroom_outbox_id) WHERE id IN :ids AND stage = 'over' ORDER BY seq FOR UPDATE
