-- By number, as the stager and a settle lock rows. Only what waits for another attempt: nothing of it is in flight.
UPDATE postroom_outbox FORCE INDEX (PRIMARY) SET next_attempt_at = UTC_TIMESTAMP(6)
WHERE seq IN :seqs AND id IN :ids AND stage = 'waiting' AND state = 'failed'
