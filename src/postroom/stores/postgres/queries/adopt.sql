-- One step of rows. The hash and the lane are those that postroom itself computes: MD5 of the aggregate's type, a NUL
-- and the key, in UTF-8; a row without an aggregate_id is its own key. A row that waited for another attempt is
-- due at once, so that no key needs a block; one with the maximum of attempts is dead.
INSERT INTO postroom_outbox (
    {number}id, stream, key_hash, lane, type, topic, key, aggregate_type, aggregate_id, payload, payload_bytes,
    content_type, size, occurred_at, created_at, state, stage, attempts, last_error, settled_at)
{overriding}
SELECT {old_number}a.event_id, CAST(:stream AS text), a.key_hash, get_byte(a.key_hash, 0) % 64, a.event_type, a.topic,
    a.aggregate_id, a.aggregate_type, a.aggregate_id, a.payload, a.payload_bytes, CAST(:content_type AS text),
    octet_length(coalesce(a.payload_bytes, convert_to(a.payload, 'UTF8'))), a.created_at, a.created_at, a.state,
    CASE WHEN a.state IN ('done', 'dead') THEN 'over' ELSE 'ready' END, a.attempts, a.last_error,
    CASE WHEN a.state IN ('done', 'dead') THEN clock_timestamp() END
FROM (
    SELECT t.{id} AS place, {created_at} AS created_at, {event_id} AS event_id, {event_type} AS event_type,
        coalesce({row_topic}, CAST(:topic AS text)) AS topic, {aggregate_type} AS aggregate_type,
        {aggregate_id} AS aggregate_id, {payload} AS payload, {payload_bytes} AS payload_bytes,
        decode(md5(CASE WHEN {aggregate_id} IS NULL
            THEN '\x0000'::bytea || convert_to({event_id}, 'UTF8')
            ELSE convert_to(coalesce({aggregate_type}, ''), 'UTF8') || '\x00'::bytea
                || convert_to({aggregate_id}, 'UTF8') END), 'hex') AS key_hash,
        CASE
            WHEN {status} = ANY (CAST(:done AS text[])) THEN 'done'
            WHEN {status} = ANY (CAST(:dead AS text[]))
                OR ({status} = ANY (CAST(:failed AS text[])) AND {attempts} >= CAST(:max_attempts AS integer)) THEN 'dead'
            WHEN {status} = ANY (CAST(:failed AS text[])) THEN 'failed'
            WHEN {status} = ANY (CAST(:pending AS text[])) THEN 'pending' END AS state,
        {attempts} AS attempts, left({last_error}, 2000) AS last_error, {place} AS rank
    FROM {table} AS t WHERE t.{id} = ANY (CAST(:ids AS {id_type}[]))
) AS a ORDER BY a.rank, a.place
RETURNING seq
