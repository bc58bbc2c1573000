"""postroom: a transactional outbox and inbox.

A service adds events to the outbox in the same commit as its data, and a relay delivers them. The
inbox makes sure that a received message takes effect once.
"""

import importlib
from typing import TYPE_CHECKING, Any

from postroom._version import __version__
from postroom.broker import Broker
from postroom.bus import Bus, Module
from postroom.engine.consumer import Consumer
from postroom.engine.handlers.context import Context, SyncContext
from postroom.engine.handlers.handlers import Handlers
from postroom.engine.relay.relay import Relay
from postroom.errors import (
    AutocommitError,
    CausationError,
    ConfigError,
    DuplicateEventError,
    EventError,
    MissingExtraError,
    NotDeliveredError,
    NotFoundError,
    NumberTakenError,
    PausedError,
    PayloadError,
    PostroomError,
    Reject,
    ReplacedError,
    Retry,
    SchemaError,
    StoreError,
    StoreLockedError,
    StoreRefusedError,
    StoreRetryableError,
    StoreUnknownError,
    TransactionEndedError,
    TransactionError,
    UnsupportedConnectionError,
)
from postroom.event import Event
from postroom.inbox import Inbox, SyncInbox
from postroom.lookup import Filter
from postroom.model.envelope import read_headers
from postroom.model.url import Url
from postroom.outbox import Outbox, SyncOutbox
from postroom.record import Record, State
from postroom.registry import migrate
from postroom.retry import Constant, Exponential, Linear, RetryPolicy
from postroom.routes import Routes
from postroom.settings import ConsumerSettings, RelaySettings
from postroom.source import Source
from postroom.store import Store
from postroom.transactions.conflicts import is_conflict

if TYPE_CHECKING:
    from postroom.brokers.memory import MemoryBroker
    from postroom.stores.memory import MemoryStore
    from postroom.stores.opening import open_store

__all__ = [
    "AutocommitError",
    "Broker",
    "Bus",
    "CausationError",
    "ConfigError",
    "Constant",
    "Consumer",
    "ConsumerSettings",
    "Context",
    "DuplicateEventError",
    "Event",
    "EventError",
    "Exponential",
    "Filter",
    "Handlers",
    "Inbox",
    "Linear",
    "MemoryBroker",
    "MemoryStore",
    "MissingExtraError",
    "Module",
    "NotDeliveredError",
    "NotFoundError",
    "NumberTakenError",
    "Outbox",
    "PausedError",
    "PayloadError",
    "PostroomError",
    "Record",
    "Reject",
    "Relay",
    "RelaySettings",
    "ReplacedError",
    "Retry",
    "RetryPolicy",
    "Routes",
    "SchemaError",
    "Source",
    "State",
    "Store",
    "StoreError",
    "StoreLockedError",
    "StoreRefusedError",
    "StoreRetryableError",
    "StoreUnknownError",
    "SyncContext",
    "SyncInbox",
    "SyncOutbox",
    "TransactionEndedError",
    "TransactionError",
    "UnsupportedConnectionError",
    "Url",
    "__version__",
    "is_conflict",
    "migrate",
    "open_store",
    "read_headers",
]
_LAZY = {  # loaded on first use: most programs never need them
    "MemoryBroker": "postroom.brokers.memory",
    "MemoryStore": "postroom.stores.memory",
    "open_store": "postroom.stores.opening",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
