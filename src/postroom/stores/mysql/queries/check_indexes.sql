SELECT table_name, index_name, GROUP_CONCAT(column_name ORDER BY seq_in_index)
FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name IN :tables
GROUP BY table_name, index_name
