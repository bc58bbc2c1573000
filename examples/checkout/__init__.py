"""A checkout API, its outbox in MongoDB, a relay to Kafka, and a runner that ships orders."""
