UPDATE postroom_lease SET until = :until, length = :length
WHERE stream = :stream AND owner = :owner AND (lane, token) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:held))
RETURNING lane
