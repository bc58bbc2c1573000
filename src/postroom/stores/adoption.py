"""Options of an adoption and the checks that all databases share: `postroom migrate adopt`.

An adoption moves the rows of another program's outbox table into postroom's. Each database has its
own statements (`adopt.py` and `adopt_*.sql` of the store).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from postroom.errors import ConfigError, StoreError
from postroom.event import DEFAULT_STREAM, DEFAULT_TOPIC, MAX_STREAM_BYTES, MAX_TOPIC_BYTES
from postroom.model.text import check_setting
from postroom.store import Membership

STATES = ("pending", "failed", "done", "dead")
_NAME = re.compile(r"[A-Za-z0-9_$]{1,64}(\.[A-Za-z0-9_$]{1,64})?")
_MEANINGS = {"pending": "pending", "sending": "pending", "sent": "done", "failed": "failed"}
_NO_STATUS = "\x01"  # not a status: a list in SQL needs at least one value


@dataclass(frozen=True)
class Adoption:
    """The options of an adoption.

    table          the old table, `name` or `schema.name` (MySQL: `database.name`)
    stream, topic  the new destination of the events
    statuses       the meaning of the old table's statuses: pending, failed, done or dead. Added to
                   pending, sending (= pending), sent (= done) and failed; case-insensitive;
                   NULL is the status of a row without one
    max_attempts   failed rows with this many attempts become dead letters, others are retried
    sent           move sent rows too, as done; they are pruned as usual
    keep_numbers   keep `id` as the position; otherwise rows get new positions at the end. None:
                   keep it where it is an integer
    room           how many numbers above the highest stay free for late rows
    time_zone      of times without one in the old table: an offset such as '+02:00', or a name that
                   the server knows; by default that of the server's sessions
    step           rows in one transaction
    force          run although relays serve the stream: keys may be sent out of order
    """

    table: str
    stream: str = DEFAULT_STREAM
    topic: str = DEFAULT_TOPIC
    max_attempts: int = 5
    sent: bool = True
    keep_numbers: bool | None = None
    room: int = 1_000_000
    time_zone: str | None = None
    step: int = 1_000
    statuses: Mapping[str, str] = field(default_factory=dict)
    force: bool = False

    def check(self) -> None:
        """Refuse invalid options before anything is moved."""
        if not _NAME.fullmatch(self.table):
            raise ConfigError(f"table {self.table!r}: use letters, digits, _ and $")
        check_setting("stream", self.stream, MAX_STREAM_BYTES)
        check_setting("topic", self.topic, MAX_TOPIC_BYTES)
        if self.step < 1 or self.room < 0 or self.max_attempts < 0:
            raise ConfigError("step must be 1 or more, room and max_attempts 0 or more")
        for status, state in self.statuses.items():
            if state not in STATES:
                raise ConfigError(
                    f"status {status!r} cannot become {state!r}; use one of {', '.join(STATES)}"
                )

    @property
    def meanings(self) -> dict[str, str]:
        """The meaning of each status, by its lower-case name."""
        return _MEANINGS | {name.lower(): state for name, state in self.statuses.items()}


def refuse_relays(membership: Membership, adoption: Adoption) -> None:
    """Refuse to put rows before events that a relay may have sent (G4)."""
    names = sorted({member.name or member.owner for member in membership.members})
    if names and not adoption.force:
        raise StoreError(
            f"relays serve the stream {adoption.stream!r}: {', '.join(names)}. Rows moved "
            "now would be ordered before events that were already sent. Stop the relays until the "
            "last adoption is done, or force it (--force) if no key has events in both tables"
        )


def sort_statuses(found: Mapping[str, int], adoption: Adoption) -> dict[str, tuple[str, ...]]:
    """Return the table's statuses by meaning, and those to move; refuse unknown ones.

    Sent rows must not be published again as pending, and pending rows must not be lost.
    """
    meanings = adoption.meanings
    unknown = {status: count for status, count in found.items() if status.lower() not in meanings}
    if unknown:
        told = ", ".join(f"{status!r} ({count:,} rows)" for status, count in unknown.items())
        raise StoreError(
            f"{adoption.table} has unknown statuses: {told}. Map each of them to "
            f"one of {', '.join(STATES)}, for example --status {next(iter(unknown))}=done. "
            "Their rows were not moved"
        )
    lists = {
        state: tuple(s for s in found if meanings[s.lower()] == state) or (_NO_STATUS,)
        for state in STATES
    }
    moving = [s for s in found if adoption.sent or meanings[s.lower()] != "done"]
    return {**lists, "moving": tuple(moving) or (_NO_STATUS,)}


def number_taken(adoption: Adoption, error: object) -> StoreError:
    """Return the error for an old number that an event of the outbox has already."""
    return StoreError(
        f"a number of {adoption.table} is already taken in the outbox ({error}). Adopt before "
        "the first event is added, or give keep_numbers=False, which numbers them after it"
    )


def row_does_not_fit(adoption: Adoption, row: object, why: str) -> StoreError:
    """Return the error for the first row that the outbox cannot hold."""
    return StoreError(
        f"row {row} of {adoption.table} does not fit: {why}. Nothing was moved; correct "
        "or delete the row, and run it again"
    )
