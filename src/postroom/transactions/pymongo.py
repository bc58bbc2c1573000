"""Adapters for pymongo's sessions, sync and async, and for MongoDB without transactions.

A session does not say which database its events belong in. It is, in this order: the one that
`in_database(session, name)` was told, or the default database of the session's client, which is the
path of its URL (`mongodb://host/shop`).

A place in the order is (`ct`, `n`): the cluster time that the server writes when the event is
added, and a number that grows within the transaction, since its statements may share one cluster
time. Two writers who both write one common document cannot get it in the wrong order (W8): the
later one's transaction can only begin after the commit of the earlier, which moves the time on.

An error of the driver passes through as it is, its labels too, so that `with_transaction` runs the
callback again after a conflict.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo import ReturnDocument, UpdateOne, WriteConcern
from pymongo.errors import ConfigurationError

from postroom.errors import AutocommitError, SchemaError, TransactionError
from postroom.transaction import Counter, Mark, Row
from postroom.transactions.mongo_documents import (
    Place,
    accept_update,
    insert_update,
    mark_id,
    place_of_session,
)
from postroom.transactions.sql import DEFAULT_PREFIX, check_prefix
from postroom.transactions.steps import Steps, run, run_async

if TYPE_CHECKING:
    from pymongo.asynchronous.client_session import AsyncClientSession
    from pymongo.asynchronous.database import AsyncDatabase
    from pymongo.client_session import ClientSession
    from pymongo.database import Database
