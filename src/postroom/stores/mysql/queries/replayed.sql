-- Finished events are not in flight, so the owners keep their lanes; a settle in doubt about it is not repeated.
UPDATE postroom_lease FORCE INDEX (PRIMARY) SET replayed_at = UTC_TIMESTAMP(6) WHERE stream = :stream AND lane IN :lanes
