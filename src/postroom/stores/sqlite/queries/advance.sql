UPDATE postroom_outbox SET stage = 'ready'
WHERE seq IN (
    SELECT seq FROM postroom_outbox INDEXED BY postroom_outbox_parked
    WHERE stream = :stream AND key_hash = :key_hash AND stage = 'parked'
    ORDER BY seq LIMIT :step)
RETURNING seq
