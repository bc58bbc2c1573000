-- Each parameter is the array of a column. With it the number of the transaction that asks.
SELECT count(*), txid_current()
FROM unnest(CAST(:consumer AS text[]), CAST(:id AS text[])) AS r (consumer, id)
JOIN postroom_inbox AS i ON i.consumer = r.consumer AND i.id = r.id
WHERE i.state = 'done'
