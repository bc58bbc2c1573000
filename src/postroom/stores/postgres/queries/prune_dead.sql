-- A page of dead letters by their index; those that died long enough ago are deleted. A number of strict order stays:
-- consumers wait for it.
WITH page AS MATERIALIZED (
    SELECT d.seq FROM postroom_outbox AS d
    WHERE d.state IN ('processing', 'failed', 'dead', 'expired', 'cancelled')
      AND d.state = 'dead' AND d.stream = :stream AND d.seq > :after_seq
    ORDER BY d.seq LIMIT :limit
), gone AS (
    DELETE FROM postroom_outbox WHERE seq = ANY (ARRAY(
        SELECT o.seq FROM postroom_outbox AS o
        WHERE o.seq = ANY (ARRAY(SELECT p.seq FROM page AS p)) AND o.state = 'dead' AND coalesce(o.kseq, 0) = 0
          AND o.settled_at < statement_timestamp() - CAST(:seconds AS float8) * interval '1 second'
        ORDER BY o.seq FOR UPDATE SKIP LOCKED))
    RETURNING seq
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM page), (SELECT max(p.seq) FROM page AS p)
