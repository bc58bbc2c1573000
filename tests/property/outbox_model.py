"""What must be true of an outbox, written down without any database.

It knows events by name, their order, and who holds which lane. It does not know of stages, blocks
or barriers: how a store keeps its promises is the store's affair.
"""

from __future__ import annotations

from dataclasses import dataclass, field

UNFINISHED = ("pending", "processing", "failed")


@dataclass
class Entry:
    """An event as people see it. `place` orders the events of a key."""

    key: str
    lane: int
    place: int
    state: str = "pending"
    attempts: int = 0
    settled_at: int = 0

    @property
    def is_unfinished(self) -> bool:
        return self.state in UNFINISHED


@dataclass
class Lease:
    owner: str | None = None
    token: int = 0
    until: int = 0


@dataclass
class Model:
    """The outbox. All times are seconds."""

    lanes: tuple[int, ...]
    entries: dict[str, Entry] = field(default_factory=dict)
    now: int = 0
    places: int = 0

    def __post_init__(self):
        self.leases = {lane: Lease() for lane in self.lanes}

    # -- events -------------------------------------------------------------------------------
    def add(self, name: str, key: str, lane: int) -> None:
        self.places += 1
        self.entries[name] = Entry(key, lane, self.places)

    def in_order(self) -> list[str]:
        return sorted(self.entries, key=lambda name: self.entries[name].place)

    def unfinished(self, key: str) -> list[str]:
        return [n for n in self.in_order() if self.entries[n].key == key and self.is_open(n)]

    def is_open(self, name: str) -> bool:
        return name in self.entries and self.entries[name].is_unfinished

    # -- lanes --------------------------------------------------------------------------------
    def take(self, owner: str, lanes: tuple[int, ...], seconds: int) -> dict[int, int]:
        return {
            n: self._give(self.leases[n], owner, seconds)
            for n in lanes
            if self.leases[n].owner is None or self.leases[n].until <= self.now
        }

    def renew(self, owner: str, held: dict[int, int], seconds: int) -> None:
        for lane in self.owned(owner, held):
            self.leases[lane].until = self.now + seconds

    def retake(self, owner: str, held: dict[int, int], seconds: int) -> dict[int, int]:
        return {n: self._give(self.leases[n], owner, seconds) for n in self.owned(owner, held)}

    def release(self, owner: str, held: dict[int, int]) -> None:
        for lane in self.owned(owner, held):
            self.leases[lane].owner, self.leases[lane].until = None, 0

    def owned(self, owner: str, held: dict[int, int]) -> list[int]:
        """Return the lanes that nobody else has taken, whether the lease has run out or not."""
        return [
            n for n, t in held.items() if (self.leases[n].owner, self.leases[n].token) == (owner, t)
        ]

    def fence(self, owner: str, held: dict[int, int]) -> set[int]:
        """Return the lanes in which this owner may write now."""
        return {n for n in self.owned(owner, held) if self.leases[n].until > self.now}

    def depose(self, names: list[str]) -> None:
        for lane in {self.entries[name].lane for name in names}:
            self.leases[lane] = Lease(None, self.leases[lane].token + 1, 0)

    def _give(self, lease: Lease, owner: str, seconds: int) -> int:
        lease.owner, lease.until = owner, self.now + seconds
        lease.token += 1
        return lease.token

    # -- outcomes -----------------------------------------------------------------------------
    def ends(self, name: str, state: str, attempts: int | None = None) -> None:
        entry = self.entries[name]
        entry.state, entry.settled_at = state, self.now
        if attempts is not None:
            entry.attempts = attempts

    # -- people -------------------------------------------------------------------------------
    def replay(self, name: str) -> None:
        self.entries[name].state, self.entries[name].attempts = "pending", 0

    def skip(self, name: str, marker: str) -> None:
        """The marker takes the event's place; the event goes to the end, as a dead letter."""
        entry = self.entries[name]
        self.entries[marker] = Entry(entry.key, entry.lane, entry.place)
        self.places += 1
        entry.place = self.places
        self.ends(name, "dead")

    def prune(self, seconds: int) -> list[str]:
        old = [
            name
            for name, entry in self.entries.items()
            if entry.state == "done" and entry.settled_at < self.now - seconds
        ]
        for name in old:
            del self.entries[name]
        return old
