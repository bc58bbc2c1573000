SELECT CONVERT(owner USING utf8mb4), healthy, CONVERT(name USING utf8mb4), until > UTC_TIMESTAMP(6),
    TIMESTAMPDIFF(MICROSECOND, until, UTC_TIMESTAMP(6))
FROM postroom_member WHERE stream = :stream ORDER BY owner
