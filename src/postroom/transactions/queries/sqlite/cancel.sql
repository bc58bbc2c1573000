-- Only an event that was never ready: no relay can have read it. SQLite has one writer at a time.
-- It begins with UPDATE, never WITH: only then does sqlite3 in legacy mode open a transaction.
UPDATE postroom_outbox
SET state = 'cancelled', stage = 'over', settled_at = :now, next_attempt_at = NULL
WHERE id = :id AND stage = 'waiting' AND state = 'pending' AND kseq IS NULL
RETURNING CAST(stream AS BLOB)
