UPDATE postroom_outbox AS o
SET state = 'dead', stage = 'over', settled_at = clock_timestamp(), attempts = d.attempts, last_error = d.error,
    next_attempt_at = NULL, lease_owner = NULL, lease_until = NULL
FROM unnest(CAST(:seqs AS bigint[]), CAST(:attempts AS integer[]), CAST(:errors AS text[])) AS d (seq, attempts, error)
WHERE o.seq = d.seq AND o.stage <> 'over'
