-- The events that an operator named, and the columns that decide about them.
SELECT seq, CONVERT(id USING utf8mb4), CONVERT(stream USING utf8mb4), lane, key_hash, CONVERT(`key` USING utf8mb4),
    CONVERT(topic USING utf8mb4), kseq, history
FROM postroom_outbox FORCE INDEX (postroom_outbox_id) WHERE id IN :ids AND (stage = 'over') = :finished
  AND replaced_by IS NULL ORDER BY seq
