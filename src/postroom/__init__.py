"""postroom: a transactional outbox and inbox.

What a service must tell the world leaves by the outbox, in the same commit as its data; what it is
told arrives by the inbox, and takes effect once.
"""

from postroom._version import __version__
from postroom.brokers.handlers import Handlers
from postroom.bus import Bus, Module
from postroom.config import RelaySettings
from postroom.consumers import Consumer, ConsumerSettings
from postroom.context import Context, SyncContext
from postroom.engine.relay import Relay
from postroom.errors import (
    AutocommitError,
    CausationError,
    ConfigError,
    DuplicateEventError,
    EventError,
    MissingExtraError,
    NotFoundError,
    NumberTakenError,
    PayloadError,
    PostroomError,
    Reject,
    Retry,
    SchemaError,
    StoreConflictError,
    StoreError,
    StoreLockedError,
    StoreLostError,
    StoreRefusedError,
    TransactionEndedError,
    TransactionError,
    UnsupportedConnectionError,
)
from postroom.event import Event
from postroom.inbox import Inbox, SyncInbox
from postroom.outbox import Outbox, SyncOutbox
from postroom.record import Record, State
from postroom.retry import Constant, Exponential, Linear, RetryPolicy
from postroom.routing import Routes
from postroom.wiring import migrate

__all__ = [
    "AutocommitError",
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
    "Handlers",
    "Inbox",
    "Linear",
    "MissingExtraError",
    "Module",
    "NotFoundError",
    "NumberTakenError",
    "Outbox",
    "PayloadError",
    "PostroomError",
    "Record",
    "Reject",
    "Relay",
    "RelaySettings",
    "Retry",
    "RetryPolicy",
    "Routes",
    "SchemaError",
    "State",
    "StoreConflictError",
    "StoreError",
    "StoreLockedError",
    "StoreLostError",
    "StoreRefusedError",
    "SyncContext",
    "SyncInbox",
    "SyncOutbox",
    "TransactionEndedError",
    "TransactionError",
    "UnsupportedConnectionError",
    "__version__",
    "migrate",
]
