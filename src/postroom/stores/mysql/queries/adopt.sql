-- One step of rows. The hash and the lane are those that postroom itself computes: MD5 of the aggregate's type, a NUL
-- and the key, in UTF-8; a row without an aggregate_id is its own key. A row that waited for another attempt is
-- due at once, so that no key needs a block; one with the maximum of attempts is dead.
INSERT INTO postroom_outbox (
    {number}id, stream, key_hash, lane, type, topic, `key`, aggregate_type, aggregate_id, payload, content_type, size,
    occurred_at, created_at, state, stage, attempts, last_error, settled_at)
SELECT {old_number}a.event_id, :stream, a.key_hash, MOD(ASCII(a.key_hash), 64), a.event_type, :topic, a.aggregate_id,
    a.aggregate_type, a.aggregate_id, a.payload, 'application/json', OCTET_LENGTH(a.payload),
    a.created_at, a.created_at, a.state, IF(a.state IN ('done', 'dead'), 'over', 'ready'), a.attempts, a.last_error,
    IF(a.state IN ('done', 'dead'), UTC_TIMESTAMP(6), '9999-12-31')
FROM (
    SELECT t.id,
        CONVERT(t.event_id USING utf8mb4) AS event_id,
        CONVERT(t.event_type USING utf8mb4) AS event_type,
        NULLIF(CONVERT(t.aggregate_type USING utf8mb4), '') AS aggregate_type,
        NULLIF(CONVERT(t.aggregate_id USING utf8mb4), '') AS aggregate_id,
        UNHEX(MD5(IF(NULLIF(CONVERT(t.aggregate_id USING utf8mb4), '') IS NULL,
            CONCAT(CHAR(0, 0), CONVERT(t.event_id USING utf8mb4)),
            CONCAT(COALESCE(CONVERT(t.aggregate_type USING utf8mb4), ''), CHAR(0),
                   CONVERT(t.aggregate_id USING utf8mb4))))) AS key_hash,
        CAST(t.payload AS CHAR CHARACTER SET utf8mb4) AS payload,
        CASE
            WHEN {status} IN :done THEN 'done'
            WHEN {status} IN :dead OR ({status} IN :failed AND t.attempts >= :max_attempts) THEN 'dead'
            WHEN {status} IN :failed THEN 'failed'
            WHEN {status} IN :pending THEN 'pending' END AS state,
        GREATEST(COALESCE(t.attempts, 0), 0) AS attempts,
        COALESCE(CONVERT_TZ(t.created_at, :time_zone, '+00:00'), UTC_TIMESTAMP(6)) AS created_at,
        LEFT(CONVERT(t.last_error USING utf8mb4), 2000) AS last_error
    FROM {table} AS t WHERE t.id IN :ids
) AS a ORDER BY a.id
