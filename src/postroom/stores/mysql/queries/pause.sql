INSERT INTO postroom_control (kind, name, paused_at, paused_until, reason, who, changed_at)
VALUES (
    :kind, :name, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL :microseconds MICROSECOND, :reason, :who,
    UTC_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE
    paused_at = UTC_TIMESTAMP(6), paused_until = UTC_TIMESTAMP(6) + INTERVAL :microseconds MICROSECOND,
    reason = :reason, who = :who, changed_at = UTC_TIMESTAMP(6)
