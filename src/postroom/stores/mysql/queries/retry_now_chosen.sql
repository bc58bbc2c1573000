SELECT seq, CONVERT(id USING utf8mb4) FROM postroom_outbox FORCE INDEX (postroom_outbox_id)
WHERE id IN :ids AND stage = 'waiting' AND state = 'failed' ORDER BY seq
