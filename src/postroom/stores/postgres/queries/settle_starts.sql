-- `attempts` is set from what was read, so that a repeated settle counts once.
UPDATE postroom_outbox AS o
SET state = 'processing', lease_owner = :owner,
    lease_until = clock_timestamp() + CAST(:seconds AS float8) * interval '1 second',
    attempts = greatest(o.attempts, s.attempts + 1)
FROM unnest(CAST(:seqs AS bigint[]), CAST(:attempts AS integer[])) AS s (seq, attempts)
WHERE o.seq = s.seq AND o.stage = 'ready'
