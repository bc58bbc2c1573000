"""MongoDB as a store: replica sets, and with fewer promises a standalone server."""

from postroom.stores.mongo.store import MongoStore

__all__ = ["MongoStore"]
