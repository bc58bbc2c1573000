SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
    current_setting('default_transaction_isolation'), current_setting('synchronous_commit'),
    current_setting('fsync') = 'on', current_setting('autovacuum') = 'on',
    (date_part('epoch', clock_timestamp()) * 1000000)::bigint
