UPDATE postroom_outbox
SET type = 'postroom.skipped', payload = :payload, payload_bytes = NULL,
    size = :size + COALESCE(OCTET_LENGTH(headers), 0), content_type = 'application/json',
    schema_version = 1, occurred_at = UTC_TIMESTAMP(6),
    state = 'pending', stage = 'ready', attempts = 0, next_attempt_at = NULL, last_error = NULL,
    options = NULL, expires_at = NULL, history = NULL,
    lease_owner = NULL, lease_until = NULL, settled_at = '9999-12-31'
WHERE seq = :seq
