DELETE FROM {table} AS t WHERE t.{id} = ANY (CAST(:ids AS {id_type}[]))
