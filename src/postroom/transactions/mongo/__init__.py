"""MongoDB: sessions with and without transactions.

sessions    the adapters for pymongo's sessions, and for writes without a transaction
documents   the documents of events and of the inbox that the adapters write
state       whether the transaction of a session is still the one that accepted a message
"""

from postroom.transactions.mongo.sessions import in_database, without_transaction

__all__ = ["in_database", "without_transaction"]
