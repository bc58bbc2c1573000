"""The offline checker: histories, business tables, dead letters and what arrived; nothing else."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from postroom.record import key_hash, lane_of

CLOCK_SLACK_SECONDS = 0.002  # a clock that is read in whole milliseconds


class Evidence(NamedTuple):
    """All that is known after a run.

    committed   {id: (key, n, size, is poison)} from the business tables
    arrivals    (id, key, n, size) in the order of arrival
    dead        {id: (key, n, size)} of the dead letters in the store
    leases      (lane, token, owner, owner before, seconds that its lease had left)
    histories   the lines of all processes
    """

    committed: dict
    arrivals: list
    dead: dict
    leases: list
    histories: list
    exactly_once: bool


def check(evidence):
    """Return the violations, each as one line, and some figures."""
    found = [line["text"] for line in evidence.histories if line["what"] == "violation"]
    for examine in (
        words_of_producers, nothing_lost, no_phantom, order_kept, copies_explained,
        one_owner, dead_letters_whole,
    ):  # fmt: skip
        found += examine(evidence)
    return found


def words_of_producers(evidence):
    """I0: what a producer was told is what the database holds."""
    committed = evidence.committed
    told = {what: set() for what in ("ok", "fail")}
    for line in evidence.histories:
        if line["what"] in told:
            told[line["what"]].update(line["ids"])
    missing, ghosts = told["ok"] - set(committed), told["fail"] & set(committed)
    return [
        *(f"I0 confirmed but not there: {some(missing)}" for _ in (1,) if missing),
        *(f"I0 rolled back but there: {some(ghosts)}" for _ in (1,) if ghosts),
    ]


def nothing_lost(evidence):
    """I1: committed = arrived or dead."""
    arrived = {event_id for event_id, *_ in evidence.arrivals}
    lost = set(evidence.committed) - arrived - set(evidence.dead)
    return [f"I1 lost: {some(lost)} of {len(evidence.committed)}"] if lost else []


def no_phantom(evidence):
    """I2: what was rolled back is never seen, and nothing arrives changed."""
    found = []
    phantoms = {event_id for event_id, *_ in evidence.arrivals} - set(evidence.committed)
    if phantoms:
        found.append(f"I2 phantom: {some(phantoms)} never committed")
    changed = {
        event_id
        for event_id, *arrived in evidence.arrivals
        if event_id in evidence.committed and tuple(arrived) != evidence.committed[event_id][:3]
    }
    if changed:
        found.append(f"I2 changed on the way: {some(changed)}")
    return found


def order_kept(evidence):
    """I3: within a key, events are first seen in the order of writing."""
    found, last, seen = [], {}, set()
    for event_id, key, n, _ in evidence.arrivals:
        if event_id in seen:
            continue
        seen.add(event_id)
        if n <= last.get(key, 0):
            found.append(f"I3 order: key {key}: {n} was first seen after {last[key]}")
        last[key] = max(n, last.get(key, 0))
    return found[:5]


def copies_explained(evidence):
    """I4 and I7: effects happen once; a message is repeated only where something went wrong.

    A lane that was taken from an owner who had not given it back may bring a second copy of each of
    its events, as may each fault of the store or the destination. A lane that was given back may
    not.
    """
    copies = Counter(event_id for event_id, *_ in evidence.arrivals)
    extra = {event_id: count - 1 for event_id, count in copies.items() if count > 1}
    if evidence.exactly_once:
        return [f"I7 took effect more than once: {some(extra)}"] if extra else []
    outside = sum(
        line["what"] == "fault" and line["kind"].endswith(_OUTSIDE) for line in evidence.histories
    ) + sum(line["what"] == "breaker" and line["state"] == "open" for line in evidence.histories)
    torn = Counter(lane for lane, _, owner, before, _ in evidence.leases if owner and before)
    by_key = {}
    unexplained = set()
    for event_id, count in extra.items():
        if event_id not in evidence.committed:
            continue
        key = evidence.committed[event_id][0]
        lane = by_key.setdefault(key, lane_of(key_hash(None, key, "")))
        if evidence.leases and count > torn[lane] + outside:
            unexplained.add(event_id)
    if (
        not evidence.leases
        and extra
        and not any(line["what"] == "fault" for line in evidence.histories)
    ):
        unexplained = set(extra)
    return [f"I4 copies that nothing explains: {some(unexplained)}"] if unexplained else []


_OUTSIDE = (
    "broker", "store", "store in a frame", "broker in a frame", "connections", "alarm", "down",
)  # fmt: skip


def one_owner(evidence):
    """I5: by the store's own clock, a lane is taken only when it is free or its lease has ended."""
    found, tokens = [], defaultdict(int)
    for lane, token, owner, before, left in evidence.leases:
        if token < tokens[lane]:
            found.append(f"I5 lane {lane}: token {token} after {tokens[lane]}")
        tokens[lane] = token
        if owner and before and owner != before and left is not None and left > CLOCK_SLACK_SECONDS:
            found.append(f"I5 lane {lane} was taken {left:.3f} s before its lease ended")
    return found[:5]


def dead_letters_whole(evidence):
    """I8: poison and nothing else is buried, and nothing of it is missing."""
    poison = {i: row[:3] for i, row in evidence.committed.items() if row[3]}
    found = []
    innocent, alive = set(evidence.dead) - set(poison), set(poison) - set(evidence.dead)
    if innocent:
        found.append(f"I8 buried although nothing was wrong with them: {some(innocent)}")
    if alive:
        found.append(f"I8 poison that is not dead: {some(alive)}")
    spoilt = {i for i, row in evidence.dead.items() if i in poison and row != poison[i]}
    if spoilt:
        found.append(f"I8 dead letters that are not whole: {some(spoilt)}")
    return found


def some(ids):
    """Say how many, and name a few."""
    return f"{len(ids)} ({', '.join(sorted(map(str, ids))[:3])})"
