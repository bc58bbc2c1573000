DELETE FROM {table} WHERE id IN :ids
