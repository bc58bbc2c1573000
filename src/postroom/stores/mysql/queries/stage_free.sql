-- An event that an application's transaction has locked, to cancel or reschedule it, is left for a later look.
SELECT seq FROM postroom_outbox FORCE INDEX (PRIMARY)
WHERE seq IN :seqs AND stage = 'waiting' ORDER BY seq FOR UPDATE SKIP LOCKED
