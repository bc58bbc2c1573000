-- In one statement, which is one snapshot: the index alone chooses the first of each lane and then the oldest of the
-- rest ({lanes} is read_lane for each), their sizes are added up, and only what fits is fetched, with its blocks (B2).
SELECT {columns}, b.barrier
FROM (
    SELECT seq, SUM(size) OVER (ORDER BY seq) AS total, ROW_NUMBER() OVER (ORDER BY seq) AS number
    FROM (
        SELECT seq, size FROM ({lanes}) AS candidates
        ORDER BY IF(ROW_NUMBER() OVER (PARTITION BY place ORDER BY seq) > 1, 64 + seq, place)
        LIMIT :rows
    ) AS chosen
) AS c
STRAIGHT_JOIN postroom_outbox AS o ON o.seq = c.seq
LEFT JOIN postroom_block AS b ON b.stream = o.stream AND b.key_hash = o.key_hash
WHERE c.total <= :size OR c.number = 1
