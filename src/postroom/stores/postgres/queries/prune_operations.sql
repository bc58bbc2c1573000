-- Finished operations. They were created before they ended: the index by creation bounds the search.
DELETE FROM postroom_operation WHERE id = ANY (ARRAY(
    SELECT p.id FROM postroom_operation AS p
    WHERE p.created_at < statement_timestamp() - CAST(:seconds AS float8) * interval '1 second'
      AND p.changed_at < statement_timestamp() - CAST(:seconds AS float8) * interval '1 second'
      AND p.state IN ('cancelled', 'done')
    ORDER BY p.created_at LIMIT :limit
    FOR UPDATE SKIP LOCKED))
