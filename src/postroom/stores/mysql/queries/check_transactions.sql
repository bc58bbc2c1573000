-- Needs the right PROCESS. trx_started is in the time of this session's time zone's server.
SELECT trx_mysql_thread_id, TIMESTAMPDIFF(SECOND, trx_started, SYSDATE()) FROM information_schema.innodb_trx
ORDER BY trx_started LIMIT 1
