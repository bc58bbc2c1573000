-- How the server takes what this session sends: whatever the driver asked for, its own configuration decides.
SELECT @@character_set_client, @@character_set_connection
