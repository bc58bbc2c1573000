-- Events of one key, newest first. Asked for as a range: see find_by. Instants: see postroom_instant.
SELECT o.seq, o.id, o.stream, o.type, o.topic, o.key, o.aggregate_type, o.correlation_id, o.causation_id, o.state,
    o.stage, o.attempts, postroom_instant(o.created_at), postroom_instant(o.next_attempt_at),
    postroom_instant(o.settled_at), o.last_error
FROM postroom_outbox AS o
WHERE o.key IS NOT NULL AND o.key >= CAST(:value AS text) AND o.key <= CAST(:value AS text)
ORDER BY o.key DESC, o.seq DESC LIMIT :limit
