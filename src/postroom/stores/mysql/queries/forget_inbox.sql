-- Inbox rows of erased messages: what is left recognizes a redelivery.
UPDATE postroom_inbox FORCE INDEX (PRIMARY) SET correlation_id = NULL
WHERE consumer IN :consumers AND id IN :ids AND correlation_id IS NOT NULL
