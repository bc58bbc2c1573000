-- Only behind a block that is still there: a row parked without one would wait for ever.
UPDATE postroom_outbox AS o FORCE INDEX (PRIMARY) SET o.stage = 'parked'
WHERE o.seq IN :seqs AND (o.seq, o.id) IN :names AND o.stream = :stream AND o.lane IN :lanes
  AND o.stage = 'ready' AND o.state <> 'processing'
  AND EXISTS (SELECT 1 FROM postroom_block AS b
              WHERE b.stream = o.stream AND b.key_hash = o.key_hash AND b.barrier < o.seq)
