SELECT value FROM postroom_meta WHERE name = 'schema_version'
