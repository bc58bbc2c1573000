UPDATE postroom_outbox AS o
SET state = 'dead', stage = 'over', settled_at = clock_timestamp(), last_error = :reason, history = n.history,
    attempts = coalesce(CAST(:attempts AS integer), attempts),
    available_at = CASE WHEN CAST(:attempts AS integer) IS NULL THEN available_at END,
    next_attempt_at = NULL, lease_owner = NULL, lease_until = NULL
FROM unnest(CAST(:seqs AS bigint[]), CAST(:histories AS text[])) AS n (seq, history)
WHERE o.seq = n.seq AND o.stage <> 'over'
