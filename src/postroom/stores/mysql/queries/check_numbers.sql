SELECT MIN(seq), MAX(seq) FROM postroom_outbox
