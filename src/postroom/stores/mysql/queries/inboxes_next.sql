-- The next consumer, by a look into the index.
SELECT MIN(consumer) FROM postroom_inbox WHERE consumer > :after
