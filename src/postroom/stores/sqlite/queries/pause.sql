INSERT INTO postroom_control (kind, name, paused_at, paused_until, reason, who, changed_at)
VALUES (:kind, :name, :now, :until, :reason, :who, :now)
ON CONFLICT (kind, name) DO UPDATE
SET paused_at = excluded.paused_at, paused_until = excluded.paused_until, reason = excluded.reason,
    who = excluded.who, changed_at = excluded.changed_at
