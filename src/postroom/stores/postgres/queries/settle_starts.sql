-- `attempts` is set from the value that was read, so that a repeated settle counts once.
UPDATE postroom_outbox AS o
SET state = 'processing', lease_owner = :owner,
    lease_until = clock_timestamp() + CAST(:seconds AS float8) * interval '1 second',
    attempts = greatest(o.attempts, least(n.attempts + 1, 999999))
FROM unnest(CAST(:seqs AS bigint[]), CAST(:ids AS text[]), CAST(:attempts AS integer[])) AS n (seq, id, attempts)
WHERE o.seq = n.seq AND o.id = n.id AND o.stream = :stream AND o.lane = ANY (CAST(:lanes AS smallint[]))
  AND o.stage = 'ready'
