-- The events an operator named, and what decides about them.
SELECT seq, id, stream, lane, key_hash, key, topic, kseq FROM postroom_outbox
WHERE id = ANY (CAST(:ids AS text[])) AND (stage = 'over') = :over ORDER BY seq
