-- The first name after a given one, among all that are in use; a step into each range of the index. As it is stored:
-- converted, a name that is not UTF-8 would lead back to one that was seen before.
SELECT MIN(s.stream) FROM (
    (SELECT stream FROM postroom_outbox FORCE INDEX (postroom_outbox_shelf)
     WHERE shelf = 'ready' AND stream > :after ORDER BY stream LIMIT 1)
    UNION ALL
    (SELECT stream FROM postroom_outbox FORCE INDEX (postroom_outbox_shelf)
     WHERE shelf = 'waiting' AND stream > :after ORDER BY stream LIMIT 1)
    UNION ALL
    (SELECT stream FROM postroom_outbox FORCE INDEX (postroom_outbox_shelf)
     WHERE shelf = 'parked' AND stream > :after ORDER BY stream LIMIT 1)
    UNION ALL
    (SELECT stream FROM postroom_outbox FORCE INDEX (postroom_outbox_shelf)
     WHERE shelf = 'dead' AND stream > :after ORDER BY stream LIMIT 1)
    UNION ALL
    (SELECT stream FROM postroom_outbox FORCE INDEX (postroom_outbox_shelf)
     WHERE shelf = 'done' AND stream > :after ORDER BY stream LIMIT 1)
    UNION ALL
    (SELECT stream FROM postroom_lease WHERE stream > :after ORDER BY stream LIMIT 1)
) AS s
