-- A row comes back if the message is new, or was received but not yet done (I1).
INSERT INTO postroom_inbox (consumer, id, type, correlation_id, state, received_at, processed_at)
VALUES (:consumer, :id, :type, :correlation_id, 'done', :now, :now)
ON CONFLICT (consumer, id) DO UPDATE SET state = 'done', processed_at = excluded.processed_at
WHERE state <> 'done'
RETURNING 1
