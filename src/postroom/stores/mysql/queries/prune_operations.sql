-- Finished operations. They were created before they ended: the index by creation bounds the search.
DELETE FROM postroom_operation
WHERE created_at < UTC_TIMESTAMP(6) - INTERVAL :older MICROSECOND
  AND changed_at < UTC_TIMESTAMP(6) - INTERVAL :older MICROSECOND AND state IN ('cancelled', 'done')
ORDER BY created_at LIMIT :limit
