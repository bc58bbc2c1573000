-- From name to name over the indexes that lead to the stream.
SELECT DISTINCT CONVERT(s.stream USING utf8mb4) FROM (
    SELECT stream FROM postroom_outbox FORCE INDEX (postroom_outbox_shelf) GROUP BY shelf, stream
    UNION ALL
    SELECT stream FROM postroom_lease GROUP BY stream
) AS s ORDER BY s.stream
