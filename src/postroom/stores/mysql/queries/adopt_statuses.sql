-- The statuses of the rows, byte by byte: a collation may treat SENT and sent as equal, another one not.
SELECT {status}, COUNT(*) FROM {table} AS t GROUP BY 1 ORDER BY 1
