INSERT INTO postroom_control AS c (kind, name, paused_at, paused_until, reason, who, changed_at)
VALUES (
    :kind, :name, statement_timestamp(), statement_timestamp() + CAST(:seconds AS float8) * interval '1 second',
    :reason, :who, statement_timestamp())
ON CONFLICT (kind, name) DO UPDATE
SET paused_at = excluded.paused_at, paused_until = excluded.paused_until, reason = excluded.reason,
    who = excluded.who, changed_at = excluded.changed_at
