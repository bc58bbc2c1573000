INSERT INTO postroom_control AS c (kind, name, max_per_second, max_in_flight, who, changed_at)
VALUES (
    :kind, :name, CAST(:per_second AS float8), CAST(:in_flight AS integer), :who, clock_timestamp())
ON CONFLICT (kind, name) DO UPDATE
SET max_per_second = excluded.max_per_second, max_in_flight = excluded.max_in_flight, changed_at = excluded.changed_at
