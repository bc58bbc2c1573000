-- The character set that the server assumes for this session: its configuration decides, not the driver's request.
SELECT @@character_set_client, @@character_set_connection
