DELETE FROM postroom_outbox
WHERE seq IN :seqs AND state = 'dead' AND settled_at < UTC_TIMESTAMP(6) - INTERVAL :older MICROSECOND
