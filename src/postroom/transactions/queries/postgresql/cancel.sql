-- Only an event that was never ready: no relay can have read it. The row lock decides between this and the stager, which
-- leaves locked rows alone. Numbered events cannot wait; a cancelled one would leave a gap.
UPDATE postroom_outbox
SET state = 'cancelled', stage = 'over', settled_at = statement_timestamp(), next_attempt_at = NULL
WHERE id = :id AND stage = 'waiting' AND state = 'pending' AND kseq IS NULL
RETURNING stream
