-- The first row that the outbox cannot hold, and why: names and keys have up to 255 bytes, ids up to 100.
SELECT CAST(id AS text), why FROM (
    SELECT t.{id} AS id, {place} AS rank, CASE
        WHEN {too_low} THEN 'its id is below 1'
        WHEN {event_id} IS NULL THEN 'event_id is NULL'
        WHEN {event_type} IS NULL THEN 'event_type is NULL'
        WHEN {payload} IS NULL AND {payload_bytes} IS NULL THEN 'payload is NULL'
        WHEN octet_length(convert_to({event_id}, 'UTF8')) > 100 THEN 'event_id has more than 100 bytes'
        WHEN octet_length(convert_to({event_type}, 'UTF8')) > 255 THEN 'event_type has more than 255 bytes'
        WHEN octet_length(convert_to({aggregate_type}, 'UTF8')) > 255 THEN 'aggregate_type has more than 255 bytes'
        WHEN octet_length(convert_to({aggregate_id}, 'UTF8')) > 255 THEN 'aggregate_id has more than 255 bytes'
        WHEN octet_length(convert_to({row_topic}, 'UTF8')) > 255 THEN 'topic has more than 255 bytes'
        WHEN row_number() OVER (PARTITION BY {event_id} ORDER BY t.{id}) > 1 THEN 'another row has the same event_id'
        END AS why
    FROM {table} AS t WHERE {status} = ANY (CAST(:moving AS text[]))) AS looked
WHERE why IS NOT NULL ORDER BY rank, id LIMIT 1
