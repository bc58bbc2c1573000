INSERT INTO postroom_control (kind, name, max_per_second, max_in_flight, who, changed_at)
VALUES (:kind, :name, :per_second, :in_flight, :who, :now)
ON CONFLICT (kind, name) DO UPDATE
SET max_per_second = excluded.max_per_second, max_in_flight = excluded.max_in_flight, changed_at = excluded.changed_at
