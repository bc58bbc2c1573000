-- The id as bytes: SQLite accepts text that is not UTF-8, and one such row would fail the whole query. A blob with the
-- bytes of a text is another id.
SELECT CAST(id AS BLOB) FROM postroom_inbox
WHERE consumer = :consumer AND state = 'done' AND processed_at < :before AND typeof(id) = 'text'
ORDER BY processed_at LIMIT :limit OFFSET :skip
