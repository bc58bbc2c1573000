-- Inbox rows of erased messages: what is left recognizes a redelivery.
UPDATE postroom_inbox SET correlation_id = NULL
WHERE consumer IN (SELECT value FROM json_each(:consumers)) AND id IN (SELECT value FROM json_each(:ids))
  AND correlation_id IS NOT NULL
