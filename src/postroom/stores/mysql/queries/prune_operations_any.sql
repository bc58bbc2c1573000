-- Asked first: it locks nothing.
SELECT EXISTS (
    SELECT 1 FROM postroom_operation
    WHERE created_at < UTC_TIMESTAMP(6) - INTERVAL :older MICROSECOND
      AND changed_at < UTC_TIMESTAMP(6) - INTERVAL :older MICROSECOND AND state IN ('cancelled', 'done'))
