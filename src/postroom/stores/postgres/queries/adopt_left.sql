SELECT count(*), {highest} FROM {table} AS t
