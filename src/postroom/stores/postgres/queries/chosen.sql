-- The events that an operator named, and the columns that decide about them. Locked: no pruner deletes them
-- meanwhile. A dead letter that was edited is not among them: its edited event was sent.
SELECT seq, id, stream, lane, key_hash, key, topic, kseq, history FROM postroom_outbox
WHERE id = ANY (CAST(:ids AS text[])) AND (stage = 'over') = :over AND replaced_by IS NULL ORDER BY seq FOR UPDATE
