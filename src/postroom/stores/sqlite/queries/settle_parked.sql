-- Only behind a block that is still there: a row parked without one would wait for ever.
UPDATE postroom_outbox SET stage = 'parked'
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND stage = 'ready' AND state <> 'processing'
  AND EXISTS (SELECT 1 FROM postroom_block AS b
              WHERE b.stream = postroom_outbox.stream AND b.key_hash = postroom_outbox.key_hash
                AND b.barrier < postroom_outbox.seq)
