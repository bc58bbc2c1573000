-- Inbox rows of erased messages: what is left recognizes a redelivery.
UPDATE postroom_inbox SET correlation_id = NULL
WHERE consumer = ANY (CAST(:consumers AS text[])) AND id = ANY (CAST(:ids AS text[])) AND correlation_id IS NOT NULL
