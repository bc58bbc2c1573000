"""MongoDB as a store: replica sets, and with fewer promises a standalone server."""

from postroom.stores.mongo.embedded import EmbeddedOutbox
from postroom.stores.mongo.reconciler import Reconciler, Report
from postroom.stores.mongo.reconciler_rules import FoundBy, HasResult, Marked, Recent
from postroom.stores.mongo.store import MongoStore
from postroom.stores.mongo.upsert import upsert, upsert_sync

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
