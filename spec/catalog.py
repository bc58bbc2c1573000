"""What is run: worlds in which every promise must hold, and mechanisms that must be missed."""

from __future__ import annotations

from typing import NamedTuple

LANES, INBOX, HANDLERS = "lanes.pml", "inbox.pml", "handlers.pml"
THREE = ("N=3", "KEYS=6")  # seq 0 of one key, 1 and 2 of the other
FOUR = ("N=4", "KEYS=14")  # seq 0 of one key, 1, 2 and 3 of the other
ONE_KEY = ("N=3", "KEYS=7")
LONG = ("N=4", "KEYS=15")  # one key, too
RELAY = ("G2", "G3", "G4", "G5")


class World(NamedTuple):
    """Some events and some faults. Every promise named holds in each of its states."""

    name: str
    model: str
    promises: tuple[str, ...]
    defines: tuple[str, ...]
    deep: bool = False  # takes longer: only on demand


class Switch(NamedTuple):
    """A mechanism taken out. The promise must break in this world, which keeps it otherwise."""

    name: str
    model: str
    promise: str
    defines: tuple[str, ...]
    what: str


WORLDS = (
    World("quiet", LANES, RELAY, THREE),
    World("leases expire", LANES, RELAY, (*THREE, "EXPIRIES=2", "FAILURES=1")),
    World("hand-over", LANES, RELAY, (*THREE, "HANDOVERS=2", "EXPIRIES=1")),
    World("deaths", LANES, RELAY, (*THREE, "CRASHES=2", "HANDOVERS=1")),
    World("failures", LANES, RELAY, (*THREE, "FAILURES=2", "EXPIRIES=1")),
    World("a long key", LANES, RELAY, (*LONG, "FAILURES=2", "HANDOVERS=1")),
    World("an operator replays", LANES, RELAY, (*ONE_KEY, "FAILURES=4", "REPLAYS=1", "LOSSES=1")),
    World("lost confirms", LANES, RELAY, (*THREE, "UNKNOWNS=2", "EXPIRIES=1")),
    World("lost settles", LANES, RELAY, (*THREE, "LOSSES=1", "EXPIRIES=1", "FAILURES=1")),
    World("poison, buried", LANES, (*RELAY, "G7"), (*THREE, "POISON=2", "EXPIRIES=1")),
    World(
        "poison, blocking",
        LANES,
        ("G3", "G4", "G5", "G7"),
        (*THREE, "POISON=2", "EXPIRIES=1", "BLOCK_POLICY"),
    ),
    World(
        "inbox", INBOX, ("G6",), ("CRASHES=2", "REDELIVERIES=2", "FAILURES=2", "LOSSES=2")
    ),
    World("handlers that kill", HANDLERS, ("G7",), ("CRASHES=1",)),
    World(
        "deep: deaths and hand-over", LANES, RELAY,
        (*THREE, "EXPIRIES=1", "CRASHES=1", "HANDOVERS=1"), deep=True,
    ),
    World(
        "deep: deaths and lost settles", LANES, RELAY,
        (*THREE, "EXPIRIES=1", "CRASHES=1", "LOSSES=1"), deep=True,
    ),
    World(
        "deep: failures and lost confirms", LANES, RELAY,
        (*THREE, "EXPIRIES=1", "FAILURES=2", "UNKNOWNS=1"), deep=True,
    ),
    World(
        "deep: poison and deaths", LANES, (*RELAY, "G7"),
        (*THREE, "POISON=2", "EXPIRIES=1", "CRASHES=1"), deep=True,
    ),
    World(
        "deep: four events", LANES, RELAY, (*FOUR, "EXPIRIES=1", "FAILURES=2"), deep=True
    ),
)  # fmt: skip

SWITCHES = (
    Switch("NO_CONFIRM", LANES, "G2", THREE, "settled before the destination has confirmed"),
    Switch("CURSOR", LANES, "G2", THREE, "a read begins behind the last number seen"),
    Switch(
        "NO_PARK_GUARD", LANES, "G2", (*THREE, "FAILURES=1", "LOSSES=1"),
        "followers are parked although their key is no longer blocked",
    ),
    Switch(
        "NO_BARRIER", LANES, "G2", (*LONG, "FAILURES=1"),
        "the block goes while followers are still parked",
    ),
    Switch(
        "NO_DRAIN", LANES, "G3", (*THREE, "HANDOVERS=1"), "a lane is given back with work in flight"
    ),
    Switch("NO_EXCLUDE", LANES, "G3", THREE, "a read brings keys that are in flight"),
    Switch(
        "PUBLISH_AGAIN", LANES, "G3", (*THREE, "LOSSES=1"),
        "a settle whose reply was lost is answered by reading again",
    ),
    Switch(
        "NO_READ_FENCE", LANES, "G3", (*THREE, "EXPIRIES=1"),
        "a read does not ask whether the lane is still held",
    ),
    Switch(
        "GO_ON", LANES, "G4", (*THREE, "FAILURES=1"), "a key goes on after an event that failed"
    ),
    Switch("NO_BLOCK", LANES, "G4", (*THREE, "FAILURES=1"), "a failed head leaves no block row"),
    Switch(
        "NO_BARRIER", LANES, "G4", (*LONG, "FAILURES=1"),
        "the block goes while followers are still parked",
    ),
    Switch(
        "NO_STEPPING_BACK", LANES, "G4", (*ONE_KEY, "FAILURES=4", "REPLAYS=1"),
        "a lower failed head takes over the block, and the former one is forgotten",
    ),
    Switch("UNCOORDINATED", LANES, "G4", THREE, "writers of one key commit in any order"),
    Switch("NO_FENCE", LANES, "G5", (*THREE, "EXPIRIES=1"), "a settle does not look at the lease"),
    Switch(
        "NO_LOCK", LANES, "G5", (*THREE, "EXPIRIES=1"),
        "the lease row is looked at, but not locked until the commit",
    ),
    Switch("NO_EXPIRY", LANES, "G5", (*THREE, "EXPIRIES=1"), "a lease counts after its end"),
    Switch("NO_TOKEN", LANES, "G5", (*THREE, "LOSSES=1"), "the fence asks for the owner only"),
    Switch(
        "NO_RETAKE", LANES, "G5", (*THREE, "LOSSES=1"),
        "a settle whose reply was lost is repeated under the same token",
    ),
    Switch("ACK_FIRST", INBOX, "G6", ("CRASHES=1",), "acknowledged before the commit"),
    Switch("OUTSIDE", INBOX, "G6", ("CRASHES=1",), "accepted in a transaction of its own"),
    Switch("NO_ACCEPT", INBOX, "G6", (), "nothing is accepted"),
    Switch("NO_LOCK", INBOX, "G6", (), "two transactions can accept one message"),
    Switch(
        "NO_SUSPECTS", LANES, "G7", (*THREE, "POISON=2"),
        "an event without an answer is charged at once",
    ),
    Switch(
        "NO_DEAD_LETTERS", LANES, "G7", (*THREE, "POISON=2"), "what is given up is deleted"
    ),
    Switch("COUNT_AFTER", HANDLERS, "G7", (), "an attempt is counted when the handler has ended"),
    Switch("NO_ALONE", HANDLERS, "G7", (), "what a dead process left is not tried alone"),
    Switch("IGNORE_ORPHANS", HANDLERS, "G7", (), "rows that a dead process left are not read"),
)  # fmt: skip
