-- The changes to the copy of a dead letter, or to its row if that keeps its place.
UPDATE postroom_outbox
SET payload = CAST(:payload AS text), payload_bytes = CAST(:payload_bytes AS bytea), content_type = :content_type,
    headers = :headers, size = :size, options = CAST(:options AS text), history = :history,
    last_error = NULL, available_at = NULL, created_at = clock_timestamp()
WHERE id = :id
