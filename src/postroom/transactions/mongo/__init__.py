"""MongoDB: sessions with and without transactions.

sessions    the adapters for pymongo's sessions, and for writes without a transaction
documents   the format of events, inbox and counters; the store reads it from here too
state       whether the transaction of a session is still the one that accepted a message
"""

from postroom.transactions.mongo.sessions import in_database, without_transaction

__all__ = ["in_database", "without_transaction"]
