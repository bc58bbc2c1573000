-- The numbers of new events begin above those of the old ones, whenever these are moved.
ALTER TABLE postroom_outbox AUTO_INCREMENT = :number
