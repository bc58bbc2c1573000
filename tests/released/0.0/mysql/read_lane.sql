-- The lowest ready events of one lane, by the index alone; a part of `read`.
(SELECT {place} AS place, seq, size FROM postroom_outbox FORCE INDEX (postroom_outbox_shelf)
 WHERE shelf = 'ready' AND stream = :stream AND slot = {lane}{except}{held} ORDER BY seq LIMIT :per_lane)
