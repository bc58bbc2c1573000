SELECT o.seq, o.id, o.stream, o.type, o.topic, o.key, o.aggregate_type, o.correlation_id, o.causation_id, o.state,
    o.stage, o.attempts, o.created_at, o.next_attempt_at, o.settled_at, o.last_error
FROM postroom_outbox AS o WHERE o.seq > 0 ORDER BY o.seq DESC LIMIT :limit
