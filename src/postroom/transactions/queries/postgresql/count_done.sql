-- Each parameter is the array of a column. With it the number of the transaction that asks. One look into the index for
-- each: OFFSET 0 keeps the planner from reading the whole table for a join.
SELECT count(*), txid_current()
FROM unnest(CAST(:consumer AS text[]), CAST(:id AS text[])) AS r (consumer, id)
CROSS JOIN LATERAL (
    SELECT 1 FROM postroom_inbox AS i
    WHERE i.consumer = r.consumer AND i.id = r.id AND i.state = 'done' OFFSET 0) AS i
