-- Needs the PROCESS privilege. The server shows these times in its own time zone.
SELECT trx_mysql_thread_id,
    TIMESTAMPDIFF(SECOND, CONVERT_TZ(trx_started, 'SYSTEM', '+00:00'), UTC_TIMESTAMP())
FROM information_schema.innodb_trx ORDER BY trx_started LIMIT 1
