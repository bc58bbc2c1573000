INSERT INTO postroom_control (kind, name, paused_at, paused_until, reason, who, changed_at)
VALUES (
    :kind, :name, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL :microseconds MICROSECOND, :reason, :who,
    UTC_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE
    paused_at = VALUES(paused_at), paused_until = VALUES(paused_until), reason = VALUES(reason), who = VALUES(who),
    changed_at = VALUES(changed_at)
