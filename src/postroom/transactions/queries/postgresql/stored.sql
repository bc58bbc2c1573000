-- Which of these ids are there. Needs SELECT on the column: ask may_look first.
SELECT id FROM postroom_outbox WHERE id = ANY (CAST(:ids AS text[]))
