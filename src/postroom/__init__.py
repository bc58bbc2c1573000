"""postroom: a transactional outbox and inbox.

What a service must tell the world leaves by the outbox, in the same commit as its data; what it is
told arrives by the inbox, and takes effect once.
"""

from postroom._version import __version__
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
    NotFoundError,
    NumberTakenError,
    PayloadError,
    PostroomError,
    Reject,
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
from postroom.outbox import Outbox, SyncOutbox
from postroom.record import Record, State
from postroom.registry import migrate
from postroom.retry import Constant, Exponential, Linear, RetryPolicy
from postroom.routes import Routes
from postroom.settings import ConsumerSettings, RelaySettings

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
    "__version__",
    "migrate",
]
