-- Only an event that was never ready: no relay can have read it. The row lock decides between this and the stager, which
-- leaves locked rows alone. A number of changed rows would not tell: it is 0 if the time stays the same.
SELECT CONVERT(stream USING utf8mb4) FROM postroom_outbox
WHERE seq = :seq AND id = :id AND stage = 'waiting' AND state = 'pending' AND kseq IS NULL
  AND (:at_us IS NULL OR expires_at IS NULL OR expires_at > DATE'1970-01-01' + INTERVAL :at_us MICROSECOND)
FOR UPDATE
