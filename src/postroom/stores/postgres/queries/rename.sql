-- Frees an id for its new row, in the same transaction.
UPDATE postroom_outbox SET id = :id WHERE seq = :seq
