-- Which of these counters have come to their numbers, by their places.
SELECT n.place FROM unnest(
    CAST(:places AS integer[]), CAST(:topics AS text[]), CAST(:keys AS bytea[]), CAST(:lasts AS bigint[])
) AS n (place, topic, key_hash, last)
WHERE EXISTS (
    SELECT 1 FROM postroom_counter AS c
    WHERE c.topic = n.topic AND c.key_hash = n.key_hash AND c.last >= n.last OFFSET 0)
