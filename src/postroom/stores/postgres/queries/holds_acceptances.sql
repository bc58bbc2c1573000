-- Which of these messages are done, by their places. One look into the index for each.
SELECT n.place FROM unnest(CAST(:places AS integer[]), CAST(:consumers AS text[]), CAST(:ids AS text[]))
    AS n (place, consumer, id)
WHERE EXISTS (
    SELECT 1 FROM postroom_inbox AS i WHERE i.consumer = n.consumer AND i.id = n.id AND i.state = 'done' OFFSET 0)
