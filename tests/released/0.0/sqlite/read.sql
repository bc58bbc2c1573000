-- The events that read_seqs chose, in the order of writing; the reader limits the size of a batch.
SELECT o.seq, o.id, o.stream, o.lane, o.key_hash, o.type, o.topic, o.key, o.aggregate_type, o.aggregate_id,
    coalesce(o.payload_bytes, CAST(o.payload AS BLOB)), o.content_type, o.headers, o.correlation_id,
    o.causation_path, o.schema_version, o.kseq, o.occurred_at, o.created_at, o.state, o.attempts,
    o.next_attempt_at, o.last_error, b.barrier
FROM postroom_outbox AS o
LEFT JOIN postroom_block AS b ON b.stream = o.stream AND b.key_hash = o.key_hash
WHERE o.seq IN (SELECT value FROM json_each(:seqs))
ORDER BY o.seq
