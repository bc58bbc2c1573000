-- Those of the held lanes that no other transaction has locked: one lane must not hold up the others.
SELECT lane, token FROM postroom_lease FORCE INDEX (PRIMARY)
WHERE stream = :stream AND lane IN :lanes AND (lane, token) IN :held AND owner = :owner
  AND (:doubt < 0 OR replayed_at < UTC_TIMESTAMP(6) - INTERVAL :doubt MICROSECOND)
ORDER BY lane FOR UPDATE SKIP LOCKED
