SELECT count(*) FROM postroom_outbox
WHERE state = 'done' AND (:stream IS NULL OR stream = :stream)
