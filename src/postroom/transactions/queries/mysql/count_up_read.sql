-- After count_up: a transaction sees its own change, whatever its isolation and however old its snapshot.
SELECT last FROM postroom_counter WHERE topic = :topic AND key_hash = UNHEX(:key_hash_hex)
