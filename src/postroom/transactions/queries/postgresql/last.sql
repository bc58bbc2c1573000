-- The number of a counter, and that of the transaction that asks.
SELECT coalesce(max(last), 0), txid_current() FROM postroom_counter
WHERE topic = CAST(:topic AS text) AND key_hash = CAST(:key_hash AS bytea)
