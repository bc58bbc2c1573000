DELETE FROM postroom_outbox WHERE seq = :seq
