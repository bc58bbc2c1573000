-- The events that an operator named, and the columns that decide about them.
SELECT seq, id, stream, lane, key_hash, key, topic, kseq, created_at, history FROM postroom_outbox
WHERE id IN (SELECT value FROM json_each(:ids))
  AND (stage = 'over') = :over AND replaced_by IS NULL ORDER BY seq
