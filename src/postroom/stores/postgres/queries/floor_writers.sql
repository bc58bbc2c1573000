SELECT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND relation = CAST('postroom_outbox' AS regclass)
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
