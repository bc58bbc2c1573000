SELECT o.seq, o.id, o.stream, o.type, o.topic, o.`key`, o.aggregate_type, o.correlation_id, o.causation_id, o.state,
    o.stage, o.attempts, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.created_at),
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.next_attempt_at),
    CASE WHEN o.stage = 'over' THEN TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.settled_at) END,
    CAST(o.last_error AS BINARY)
FROM postroom_outbox AS o FORCE INDEX (PRIMARY) ORDER BY o.seq DESC LIMIT :limit
