INSERT INTO postroom_control (kind, name, max_per_second, max_in_flight, reason, who, changed_at)
VALUES (:kind, :name, :per_second, :in_flight, '', :who, UTC_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE
    max_per_second = :per_second, max_in_flight = :in_flight, changed_at = UTC_TIMESTAMP(6)
