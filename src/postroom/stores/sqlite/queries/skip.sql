UPDATE postroom_outbox
SET type = 'postroom.skipped', payload = :payload, payload_bytes = NULL,
    size = :size + coalesce(length(CAST(headers AS BLOB)), 0), content_type = 'application/json',
    schema_version = 1, occurred_at = :now,
    state = 'pending', stage = 'ready', attempts = 0, next_attempt_at = NULL, last_error = NULL,
    options = NULL, expires_at = NULL, history = NULL,
    lease_owner = NULL, lease_until = NULL, settled_at = NULL
WHERE seq = :seq
