-- New: one row. Error 1062: the message is known; run accept_again next (I1). Plain INSERT as in `insert`;
-- newness is never read from ON DUPLICATE KEY UPDATE, whose count depends on the connection's FOUND_ROWS flag.
INSERT INTO postroom_inbox (consumer, id, type, correlation_id, state, received_at, processed_at)
VALUES (:consumer, :id, :type, :correlation_id, 'done', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))
