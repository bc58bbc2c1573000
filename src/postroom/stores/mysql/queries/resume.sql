UPDATE postroom_control
SET paused_at = NULL, paused_until = NULL, reason = :reason, who = :who, changed_at = UTC_TIMESTAMP(6)
WHERE kind = :kind AND name = :name AND paused_at IS NOT NULL
