"""A wiki on MongoDB: pages, rendering and search without a broker."""
