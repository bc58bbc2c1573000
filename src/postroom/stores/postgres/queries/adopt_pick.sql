-- The next rows to move, locked. A row whose status is not to be moved, or whose event_id is in the outbox already stays
-- where it is.
SELECT CAST(t.{id} AS text), CAST({place} AS text) FROM {table} AS t
WHERE ({place}, t.{id}) > (CAST(:after AS {place_type}), CAST(:after_id AS {id_type}))
  AND {status} = ANY (CAST(:moving AS text[]))
  AND NOT EXISTS (SELECT 1 FROM postroom_outbox AS n WHERE n.id = {event_id})
ORDER BY {place}, t.{id} LIMIT CAST(:step AS integer) FOR UPDATE OF t
