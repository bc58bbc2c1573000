SELECT {status} COLLATE "C", count(*) FROM {table} AS t GROUP BY 1 ORDER BY 1
