-- statement_timestamp() and not clock_timestamp(), which no index could be asked for. Done events by time; expired and
-- cancelled ones, which are few, by state.
DELETE FROM postroom_outbox WHERE seq = ANY (ARRAY(
    SELECT d.seq FROM postroom_outbox AS d
    WHERE d.state = 'done' AND d.settled_at < statement_timestamp() - CAST(:seconds AS float8) * interval '1 second'
    ORDER BY d.settled_at LIMIT :limit
    FOR UPDATE SKIP LOCKED)
|| ARRAY(
    SELECT e.seq FROM postroom_outbox AS e
    WHERE e.state IN ('expired', 'cancelled')
      AND e.settled_at < statement_timestamp() - CAST(:seconds AS float8) * interval '1 second'
    LIMIT :limit
    FOR UPDATE SKIP LOCKED))
