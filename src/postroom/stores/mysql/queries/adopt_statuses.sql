-- What the rows' statuses are, to the byte: a collation may take SENT and sent for the same, another one not.
SELECT {status}, COUNT(*) FROM {table} AS t GROUP BY 1 ORDER BY 1
