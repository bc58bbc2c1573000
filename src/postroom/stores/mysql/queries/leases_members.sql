SELECT CONVERT(owner USING utf8mb4), healthy, CONVERT(name USING utf8mb4),
    until > UTC_TIMESTAMP(6) AND until <= UTC_TIMESTAMP(6) + INTERVAL 2 * length + 10000000 MICROSECOND,
    TIMESTAMPDIFF(MICROSECOND, until, UTC_TIMESTAMP(6)), length
FROM postroom_member WHERE stream = :stream ORDER BY owner
