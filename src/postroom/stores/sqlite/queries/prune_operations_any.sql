-- Asked first: it takes no write lock.
SELECT EXISTS (
    SELECT 1 FROM postroom_operation
    WHERE created_at < :before AND changed_at < :before AND state IN ('cancelled', 'done'))
