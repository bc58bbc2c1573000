SELECT o.seq, o.id, o.stream, o.type, o.topic, o.key, o.aggregate_type, o.correlation_id, o.causation_id, o.state,
    o.stage, o.attempts, postroom_instant(o.created_at), postroom_instant(o.next_attempt_at),
    postroom_instant(o.settled_at), o.last_error
FROM postroom_outbox AS o ORDER BY o.seq DESC LIMIT :limit
