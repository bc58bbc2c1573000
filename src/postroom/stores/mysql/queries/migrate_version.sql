REPLACE INTO postroom_meta (name, value) VALUES ('schema_version', :version)
