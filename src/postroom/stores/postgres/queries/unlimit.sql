UPDATE postroom_control
SET max_per_second = NULL, max_in_flight = NULL, changed_at = clock_timestamp()
WHERE kind = :kind AND name = :name AND (max_per_second IS NOT NULL OR max_in_flight IS NOT NULL)
