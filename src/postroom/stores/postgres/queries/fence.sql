-- The lanes that are still held. Their rows stay locked until the commit, so that a relay that takes one must wait (L2). The
-- tokens are looked up by place: a join with unnest() lost lanes while a renewal was committing.
WITH held AS MATERIALIZED (
    SELECT lane FROM postroom_lease
    WHERE stream = :stream AND lane = ANY (CAST(:lanes AS smallint[])) AND owner = :owner
      AND token = (CAST(:tokens AS bigint[]))[array_position(CAST(:lanes AS smallint[]), lane)]
      AND until > clock_timestamp()
    ORDER BY lane FOR SHARE)
SELECT lane FROM held
