-- From here to the commit no other process can take it; an earlier owner finds no row.
SELECT token FROM postroom_operation
WHERE id = :id AND owner = :owner AND token = :token AND state = 'running' FOR UPDATE
