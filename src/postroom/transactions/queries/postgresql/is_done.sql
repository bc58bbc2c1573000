-- count_done for one message, by far the most frequent case. Unlike that, its plan is cached, and reads one index entry.
SELECT count(*), txid_current()
FROM postroom_inbox
WHERE consumer = :consumer AND id = :id AND state = 'done'
