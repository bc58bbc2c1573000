SELECT owner, healthy, name,
    until > UTC_TIMESTAMP(6) AND until <= UTC_TIMESTAMP(6) + INTERVAL 2 * length + 10000000 MICROSECOND,
    COALESCE(TIMESTAMPDIFF(MICROSECOND, until, UTC_TIMESTAMP(6)), 9223372036854775807), length -- NULL: a zero date
FROM postroom_member WHERE stream = :stream ORDER BY owner
