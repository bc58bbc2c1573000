-- One row: it was received and not yet done. None: it was done before. FOUND_ROWS makes no difference here.
UPDATE postroom_inbox SET state = 'done', processed_at = UTC_TIMESTAMP(6)
WHERE consumer = :consumer AND id = :id AND state <> 'done'
