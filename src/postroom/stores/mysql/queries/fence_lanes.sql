-- A relay that has an event of this lane in flight can no longer settle it (L7).
UPDATE postroom_lease SET token = token + 1, owner = NULL, until = '1970-01-01'
WHERE stream = :stream AND lane IN :lanes
