INSERT INTO postroom_meta (name, value)
SELECT 'outbox_id', :outbox_id FROM (SELECT 1) AS once
WHERE NOT EXISTS (SELECT 1 FROM postroom_meta WHERE name = 'outbox_id')
