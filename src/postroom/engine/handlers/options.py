"""The options of Handlers that a module of a bus takes by name, for editors and type checkers."""

from __future__ import annotations

from typing import Literal, TypedDict

from postroom.engine.handlers.high_water import Start
from postroom.engine.handlers.runs import AsyncFactory, SyncFactory
from postroom.model.durations import Seconds
from postroom.outbox import Outbox, SyncOutbox


class ModuleOptions(TypedDict, total=False):
    """Options of Handlers, which documents them: all but the name and the prefix."""

    transaction: AsyncFactory | Literal[False] | None
    sync_transaction: SyncFactory | Literal[False] | None
    concurrency: int
    batch: int
    time_limit_seconds: Seconds
    schema: str | None
    strict: Start | None
    outbox: Outbox | None
    sync_outbox: SyncOutbox | None
