-- From here to the commit no other process can take it; an earlier owner changes nothing.
UPDATE postroom_operation SET until = :until
WHERE id = :id AND owner = :owner AND token = :token AND state = 'running'
