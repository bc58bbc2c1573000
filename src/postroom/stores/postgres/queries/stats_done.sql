SELECT count(*) FROM postroom_outbox
WHERE state = 'done' AND (CAST(:stream AS text) IS NULL OR stream = :stream)
