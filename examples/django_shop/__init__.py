"""A Django shop that sends orders to Kafka, and a Django service that pays them."""
