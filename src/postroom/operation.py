"""Operation: stored work on many events, which goes on in steps, in any process that takes it.

An operation has one owner at a time, by a lease. Each step changes events and moves the operation's
position in one transaction, which the owner's token fences: a step of an earlier owner changes
nothing, and after a crash the next owner continues exactly where the last committed step ended.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from secrets import token_hex
from typing import Any, NamedTuple, Protocol

LEASE_SECONDS = 30.0
"""The longest lease of an operation: an end further ahead was written before the clock was set
back.
"""
AHEAD_SECONDS = 2 * LEASE_SECONDS + 10.0

KEEP_SECONDS = 30 * 86_400.0
"""How long relays keep operations after their end; the audit log keeps start and end."""

REPLAY = "replay"


class OperationState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    DONE = "done"


FINISHED = (OperationState.CANCELLED, OperationState.DONE)


class Change(StrEnum):
    """An operator's change to an operation; its value is the verb of the command."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"

    @property
    def before(self) -> tuple[OperationState, ...]:
        """The states in which it is possible."""
        match self:
            case Change.PAUSE:
                return (OperationState.RUNNING,)
            case Change.RESUME:
                return (OperationState.PAUSED, OperationState.STOPPED)
            case Change.CANCEL:
                return (OperationState.RUNNING, OperationState.PAUSED, OperationState.STOPPED)

    @property
    def after(self) -> OperationState:
        match self:
            case Change.PAUSE:
                return OperationState.PAUSED
            case Change.RESUME:
                return OperationState.RUNNING
            case Change.CANCEL:
                return OperationState.CANCELLED


class Operation(NamedTuple):
    """A row of the table `operation`.

    request     JSON: which events, and how fast; as stored, not checked
    total       the number of events when it was started; None: not counted
    handled     the number of events that it changed
    failed      the number of those that failed again, and of those that could not be changed
    position    JSON: where to continue; None: at the beginning
    token       increases with each owner, and with each change by an operator
    free        whether it is running and, by the store's clock, no process owns it
    """

    id: str
    kind: str
    request: str
    state: str
    who: str
    created_us: int
    changed_us: int
    total: int | None
    handled: int
    failed: int
    position: str | None
    error: str | None
    owner: str | None
    until_us: int | None
    token: int
    free: bool


class NewOperation(NamedTuple):
    """An operation to be started. Unfinished operations with the same fingerprint are one."""

    kind: str
    request: str
    fingerprint: str
    total: int | None = None
    about: str = ""  # for the audit entry


class Step(NamedTuple):
    """A step of an operation's owner.

    ids         finished events to be sent again. Those that are no longer in `of_state`, or that
                were settled after the operation was started, are left alone
    new_id      send copies with new ids
    position    returns the new position, given the ids under which events are sent; None: the
                position stays
    failed      added to the operation's count
    to          the operation's new state
    release     give the lease up
    """

    position: Callable[[Sequence[str]], str] | None = None
    ids: Sequence[str] = ()
    of_state: str = "dead"
    new_id: bool = False
    failed: int = 0
    to: OperationState = OperationState.RUNNING
    error: str | None = None
    lease_seconds: float = LEASE_SECONDS
    release: bool = False

    @property
    def releases(self) -> bool:
        return self.release or self.to != OperationState.RUNNING

    def new_position(self, sent: Sequence[str]) -> str | None:
        """Return the position to store; None: it stays."""
        return None if self.position is None else self.position(sent)


def new_operation_id() -> str:
    return token_hex(4)


def fingerprint_of(kind: str, selection: Mapping[str, Any]) -> str:
    """Return the same text for the same selection of the same kind."""
    text = json.dumps([kind, selection], sort_keys=True)
    return sha256(text.encode()).hexdigest()[:32]


class Operations(Protocol):
    """The part of a store that keeps operations."""

    async def start_operation(self, new: NewOperation, *, by: str) -> tuple[Operation, bool]:
        """Start an operation; returns it, and whether it is new.

        If an unfinished one has the same fingerprint, returns that one unchanged.
        """

    async def operations(self, *, unfinished: bool = False, limit: int = 100) -> list[Operation]:
        """Return operations, newest first; of unfinished ones, the running ones before all others.

        One cheap query.
        """

    async def operation(self, operation_id: str) -> Operation | None: ...

    async def take_operation(
        self, operation_id: str, owner: str, lease_seconds: float = LEASE_SECONDS
    ) -> Operation | None:
        """Take a running operation that is free, or that this owner holds; None if it is neither.

        Afterwards no step under an earlier token can commit.
        """

    async def advance_operation(self, held: Operation, step: Step) -> tuple[str, ...] | None:
        """Carry out a step in one transaction; returns the ids under which events are sent.

        Returns None, and changes nothing, if the operation is no longer held with this token, or no
        longer running. Events are replayed as by `replay`, in the operation's name. Writes audit
        entries for the events and for the end of the operation.
        """

    async def change_operation(self, operation_id: str, change: Change, *, by: str) -> bool:
        """Pause, resume or cancel it; returns whether anything changed.

        Writes an audit entry then. The owner loses its lease: none of its steps can commit.
        """

    async def prune_operations(self, older_than_seconds: float, limit: int) -> int:
        """Delete operations that ended longer ago than that, oldest first; returns how many.

        Unfinished ones stay, also stopped and paused ones.
        """
