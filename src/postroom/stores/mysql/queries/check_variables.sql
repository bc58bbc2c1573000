-- Variables that MySQL or MariaDB does not know are missing from the result.
SHOW VARIABLES WHERE Variable_name IN (
    'auto_increment_increment', 'auto_increment_offset', 'read_only', 'super_read_only', 'innodb_read_only',
    'transaction_read_only', 'tx_isolation', 'transaction_isolation', 'max_allowed_packet', 'log_bin',
    'binlog_format', 'innodb_flush_log_at_trx_commit', 'wsrep_on', 'innodb_doublewrite',
    'character_set_client', 'character_set_connection', 'character_set_results')
