-- Finished operations. They were created before they ended: the index by creation bounds the search.
DELETE FROM postroom_operation WHERE id IN (
    SELECT id FROM postroom_operation
    WHERE created_at < :before AND changed_at < :before AND state IN ('cancelled', 'done')
    ORDER BY created_at LIMIT :limit)
