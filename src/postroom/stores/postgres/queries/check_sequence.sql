SELECT s.seqcache, s.seqincrement,
    CASE WHEN has_sequence_privilege(s.seqrelid, 'SELECT') OR has_sequence_privilege(s.seqrelid, 'USAGE')
         THEN pg_sequence_last_value(CAST(s.seqrelid AS regclass)) END,
    (SELECT max(seq) FROM postroom_outbox)
FROM pg_sequence AS s
WHERE s.seqrelid = CAST(pg_get_serial_sequence('postroom_outbox', 'seq') AS regclass)
