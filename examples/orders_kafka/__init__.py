"""Orders in MariaDB, their events in Kafka, and a Kafka that is killed halfway."""
