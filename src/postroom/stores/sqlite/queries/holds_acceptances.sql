-- Which of these messages are done, by their places.
SELECT json_extract(m.value, '$[0]') FROM json_each(:acceptances) AS m
CROSS JOIN postroom_inbox AS i
    ON i.consumer = json_extract(m.value, '$[1]') AND i.id = json_extract(m.value, '$[2]')
WHERE i.state = 'done'
