SELECT EXISTS (
    SELECT 1 FROM postroom_outbox INDEXED BY postroom_outbox_done
    WHERE state = 'done' AND settled_at < :before)
OR EXISTS (
    SELECT 1 FROM postroom_outbox INDEXED BY postroom_outbox_other
    WHERE (state = 'processing' OR state = 'failed' OR state = 'dead' OR state = 'expired' OR state = 'cancelled')
      AND state IN ('expired', 'cancelled') AND settled_at < :before)
