SELECT {columns} FROM postroom_outbox AS o WHERE o.id = :id
