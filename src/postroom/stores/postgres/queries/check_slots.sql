-- Replication slots and prepared transactions hold vacuum back as well, and outlive every connection.
SELECT 'replication slot', s.slot_name, age(s.xmin) FROM pg_replication_slots AS s
WHERE s.xmin IS NOT NULL AND NOT s.active
UNION ALL
SELECT 'prepared transaction', p.gid, age(p.transaction) FROM pg_prepared_xacts AS p
WHERE p.database = current_database() AND p.prepared < clock_timestamp() - interval '5 minutes'
