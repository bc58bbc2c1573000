-- The numbers that these counters have come to. The first two conditions lead to the rows.
SELECT topic, key_hash, last FROM postroom_counter FORCE INDEX (PRIMARY)
WHERE topic IN :topics AND key_hash IN :keys AND (topic, key_hash) IN :counters
