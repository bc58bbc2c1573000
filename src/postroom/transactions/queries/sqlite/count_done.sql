SELECT count(*) FROM postroom_inbox WHERE consumer = :consumer AND id = :id AND state = 'done'
