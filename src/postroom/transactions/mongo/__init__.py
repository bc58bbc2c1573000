"""MongoDB: sessions with and without transactions, and the documents that are written."""

from postroom.transactions.mongo.sessions import in_database, without_transaction

__all__ = ["in_database", "without_transaction"]
