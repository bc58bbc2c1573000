UPDATE postroom_lease SET token = token + 1, until = :until, length = :length
WHERE stream = :stream AND owner = :owner AND replayed_at < :since AND (lane, token) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:held))
RETURNING lane, token
