-- The changes to the copy of a dead letter, or to its row if that keeps its place.
UPDATE postroom_outbox
SET payload = :payload, payload_bytes = :payload_bytes, content_type = :content_type, headers = :headers, size = :size,
    options = :options, history = :history, last_error = NULL, available_at = NULL, created_at = :now
WHERE id = :id
