"""MongoDB as a store: replica sets, and with fewer promises a standalone server."""

from postroom.stores.mongo.effects import upsert, upsert_sync
from postroom.stores.mongo.embedded import EmbeddedOutbox
from postroom.stores.mongo.reconciling import Reconciler, Report
from postroom.stores.mongo.served import FoundBy, HasResult, Marked, Recent
from postroom.stores.mongo.store import MongoStore

__all__ = [
    "EmbeddedOutbox",
    "FoundBy",
    "HasResult",
    "Marked",
    "MongoStore",
    "Recent",
    "Reconciler",
    "Report",
    "upsert",
    "upsert_sync",
]
