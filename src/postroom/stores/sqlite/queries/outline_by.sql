-- Events of one key, correlation id or causation id, oldest first.
SELECT o.seq, o.id, o.stream, o.type, o.topic, o.key, o.aggregate_type, o.correlation_id, o.causation_id, o.state,
    o.stage, o.attempts, o.created_at, o.next_attempt_at, o.settled_at, o.last_error
FROM postroom_outbox AS o INDEXED BY postroom_outbox_{index}
WHERE o.{column} = :value ORDER BY o.seq LIMIT :limit
