-- The dead letter: from now on it can be neither replayed nor edited.
UPDATE postroom_outbox SET replaced_by = :replaced_by, history = :history WHERE id = :id
