-- The longest statement that the server takes, in bytes; a longer one ends the connection with error 1153 or 2006.
SELECT @@max_allowed_packet
