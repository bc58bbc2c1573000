"""Commands: an operator's changes to the events of a store, and their audit entries (L7, B6)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from postroom.errors import NotFoundError
from postroom.record import State, short_error, stored_error

MAX_WHO_CHARS = 255
UNSENT = (State.DEAD, State.EXPIRED, State.CANCELLED)
"""The states of events that ended without being sent: `purge` deletes them."""


class AuditEntry(NamedTuple):
    """An operator's change to the outbox: `what` is replay, bury, skip, prune, purge, edit,
    forget, retry-now, cancel, reschedule, pause, resume, limit, or operation-start, -pause,
    -resume, -cancel, -stop or -done; `request`: an action of the dashboard, with its reason.
    """

    who: str
    what: str
    how_many: int
    about: str
    at_us: int = 0


def audit_entry(
    by: str, what: str, how_many: int, ids: Sequence[str], reason: str = ""
) -> AuditEntry:
    """Return an audit entry for these events, truncated to the limits of the table."""
    about = ": ".join(part for part in (", ".join(ids), reason) if part)
    return AuditEntry(short_error(by)[:MAX_WHO_CHARS], what, how_many, stored_error(about))


class Edit(NamedTuple):
    """Changes to a dead letter; None leaves a part as it is.

    payload         the payload as bytes; for a JSON content type it must be valid JSON
    headers         all headers of the application: those that are missing here are dropped
    tombstone       True: send no value. A payload turns a tombstone into an ordinary event
    """

    payload: bytes | None = None
    content_type: str | None = None
    headers: Mapping[str, str] | None = None
    tombstone: bool = False


def require_all(ids: Sequence[str], found: Collection[str]) -> None:
    """Raise NotFoundError unless every one of these events was found."""
    missing = [one for one in dict.fromkeys(ids) if one not in found]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise NotFoundError(
            f"event {missing[0]!r}{more} changed meanwhile; nothing was changed. Run the command "
            "again"
        )


class Commands(Protocol):
    """The part of a store that carries out operators' commands."""

    async def replay(
        self, ids: Sequence[str], *, new_id: bool = False, by: str | None = None
    ) -> int:
        """Send dead or done events again, starting at attempt 0; returns how many.

        With `new_id`, sends copies with new ids, which are unknown to every inbox. Finished events
        are not in flight: unlike `bury` and `skip` (L7), a replay leaves the lanes to their owners
        and records in their leases that an event was replayed. `by` is the operator: an audit entry
        is written in the same transaction.
        """

    async def bury(
        self,
        ids: Sequence[str],
        reason: str,
        *,
        by: str | None = None,
        history: str | None = None,
        attempts: int | None = None,
        whole: bool = False,
    ) -> int:
        """Turn unfinished events into dead letters; returns how many.

        With `whole`, all of them or none: raises NotFoundError, and changes nothing, if one of them
        is unknown or finished.

        Their histories get an entry, as with `replay` and `skip`; `history` replaces them instead.
        `attempts` is for messages that a consumer stores only to bury them: it replaces their
        number of attempts, and they have no `available_at`.
        """

    async def edit(self, event_id: str, edit: Edit, *, by: str | None = None) -> str:
        """Send a dead letter with changes, under a new id, which is returned.

        The dead letter stays, marked `replaced_by`, and is never sent: `replay` leaves it out. The
        new event has the header `postroom-replaces`. It is validated as by `add`, and appended to
        the order of its key; one that has a number of strict order takes the dead letter's place
        and number. Of an edit and a replay at the same moment one loses.

        Raises NotFoundError if the event is not a dead letter, ReplacedError if it was edited
        before, EventError or PayloadError for changes that `add` would refuse.
        """

    async def purge(self, ids: Sequence[str], *, by: str | None = None) -> int:
        """Delete events that were never sent: dead, expired or cancelled; returns how many.

        Other events are left alone, also one that is replayed at the same moment. Inbox rows of the
        events stay until they are older than the retention of their consumer.
        """

    async def forget(
        self,
        ids: Sequence[str],
        about: str,
        *,
        accepted: Sequence[str] = (),
        by: str | None = None,
    ) -> int:
        """Delete finished events, whatever their state, for a privacy request; returns how many.

        In all inboxes of the store the rows of the messages `accepted` keep nothing but their ids
        and types: they still recognize a redelivered message. The audit entry contains `about`,
        which must not repeat what is erased, and no ids.
        """

    async def retry_now(self, ids: Sequence[str], *, by: str | None = None) -> int:
        """Make failed events that wait for their next attempt due now; returns how many.

        Events in any other state are left alone. Nothing of them is in flight: no lane changes its
        owner, and their attempts stay counted.
        """

    async def cancel(self, ids: Sequence[str], reason: str = "", *, by: str | None = None) -> int:
        """Cancel events that wait for their first attempt; returns how many.

        Events that were ready once are left alone: a relay may have read them. `bury` ends those.
        """

    async def reschedule(self, ids: Sequence[str], at_us: int, *, by: str | None = None) -> int:
        """Change the time of events that wait for their first attempt; returns how many.

        An event that would expire before is left alone. A time in the past makes it due.
        """

    async def set_control(
        self,
        kind: str,
        name: str,
        *,
        pause: bool,
        seconds: float | None = None,
        reason: str = "",
        by: str,
    ) -> bool:
        """Pause a stream, a topic or a consumer, for this long, or resume it.

        Returns whether anything changed, and writes an audit entry then, in the same transaction. A
        second pause replaces the first. Raises ConfigError for a name that cannot be stored.
        """

    async def set_limits(
        self,
        kind: str,
        name: str,
        *,
        per_second: float | None,
        in_flight: int | None,
        by: str,
    ) -> bool:
        """Limit how fast relays send, and how many events are in flight; None: no limit.

        Both limits of the stream or topic are replaced; its pause stays. Returns whether anything
        changed: False if there was no limit to remove. Writes an audit entry then, in the same
        transaction. Raises ConfigError for a limit that is not positive, and for consumers.
        """

    async def record_audit(self, entry: AuditEntry) -> None:
        """Write an audit entry in its own transaction, with the store's time."""

    async def skip(self, event_id: str, reason: str, *, by: str | None = None) -> None:
        """Bury an event and insert a `postroom.skipped` marker in its place.

        The marker takes the number of a strict event: the dead letter has `kseq` 0, and a replay
        appends it with a new number.
        """
