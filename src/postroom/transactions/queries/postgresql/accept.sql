-- A row comes back if the message is new, or was received but not yet done (I1).
INSERT INTO postroom_inbox AS i (consumer, id, type, correlation_id, state, received_at, processed_at)
VALUES (:consumer, :id, :type, :correlation_id, 'done', statement_timestamp(), statement_timestamp())
ON CONFLICT (consumer, id) DO UPDATE SET state = 'done', processed_at = excluded.processed_at
WHERE i.state <> 'done'
RETURNING 1, txid_current()
