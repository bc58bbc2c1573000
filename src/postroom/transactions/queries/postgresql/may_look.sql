SELECT has_column_privilege('postroom_outbox', 'id', 'SELECT')
