UPDATE postroom_outbox AS o
SET state = 'failed', stage = 'waiting', attempts = f.attempts, last_error = f.error,
    next_attempt_at = clock_timestamp() + f.delay * interval '1 second', lease_owner = NULL, lease_until = NULL
FROM unnest(
    CAST(:seqs AS bigint[]), CAST(:attempts AS integer[]), CAST(:delays AS float8[]), CAST(:errors AS text[])
) AS f (seq, attempts, delay, error)
WHERE o.seq = f.seq AND o.stage <> 'over'
