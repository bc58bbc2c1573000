"""The offline checker. It reads histories, business tables, dead letters and arrived messages."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from postroom.record import key_hash, lane_of
from tests.torture.worlds import GUILTY

CLOCK_SLACK_SECONDS = 0.002  # a clock that is read in whole milliseconds
WINDOW_SECONDS = 2.0  # a process notes a thing a little after it happened
STREAM = "main"
CLEAR = ("failed", "rejected", "unsent")  # verdicts that say that nothing has gone


class Evidence(NamedTuple):
    """All that is known after a run.

    committed   {id: (key, n, size, fate)} from the business tables; fate is '', shaky, poison, oversize
    arrivals    (id, key, n, size) in the order of arrival at the broker
    effects     (id, key, n) in the order of the database
    dead        {id: (key, n, size)} of the dead letters in the outbox
    buried      {id: (key, n, size)} of the consumers' dead letters
    leases      every time a lane got another owner or token
    settled     every event that became done, and whose lane it was then
    histories   the lines of all processes
    by_handlers True if the relays' own handlers make the effects, with no broker in between
    strict      the keys whose numbers have no gap
    guilty      the fates that end as a dead letter
    foreign     {number: Foreign} of what others have sent and written
    met         the numbers of those that took effect, in the order of the database
    foreign_dead  the numbers of those that are dead letters, one for each letter
    cancelled   the ids of events that an operator cancelled
    replaced    {id of a dead letter: the id that its edited event was sent as}
    nowhere     the ids of edited events that the store does not have
    undone      operations that are not done
    """

    committed: dict
    arrivals: list
    effects: list
    dead: dict
    buried: dict
    leases: list
    settled: list
    histories: list
    by_handlers: bool
    strict: tuple = ()
    guilty: tuple = GUILTY
    foreign: dict = {}  # noqa: RUF012 - nobody changes it
    met: list = []  # noqa: RUF012
    foreign_dead: list = []  # noqa: RUF012
    cancelled: list = []  # noqa: RUF012
    replaced: dict = {}  # noqa: RUF012
    nowhere: list = []  # noqa: RUF012
    undone: list = []  # noqa: RUF012


def check(evidence):
    """Return the violations, each as one line."""
    found = [line["text"] for line in evidence.histories if line["what"] == "violation"]
    for examine in (
        words_of_producers, nothing_lost, no_phantom, order_kept, copies_explained, one_owner,
        stale_settles_change_nothing, effects_once, dead_letters_whole, foreign_ends, foreign_order,
        operators_obeyed,
    ):  # fmt: skip
        found += examine(evidence)
    return found


def words_of_producers(evidence):
    """T0: the database holds what it confirmed to producers; a transaction is there whole or not."""
    committed = evidence.committed
    told = {what: set() for what in ("ok", "fail", "unknown")}
    torn = set()
    for line in evidence.histories:
        if line["what"] in told:
            told[line["what"]].update(line["ids"])
            there = committed.keys() & line["ids"]
            if there and len(there) < len(line["ids"]):
                torn |= there
    missing, ghosts = told["ok"] - set(committed), told["fail"] & set(committed)
    return [
        *(f"T0 transactions that are there in part: {some(torn)}" for _ in (1,) if torn),
        *(f"T0 confirmed but not there: {some(missing)}" for _ in (1,) if missing),
        *(f"T0 rolled back but there: {some(ghosts)}" for _ in (1,) if ghosts),
    ]


def nothing_lost(evidence):
    """T1: every committed event has arrived or is a dead letter."""
    arrived = {event_id for event_id, *_ in evidence.arrivals or evidence.effects}
    lost = set(evidence.committed) - arrived - set(evidence.dead) - set(evidence.cancelled)
    return [f"T1 lost: {some(lost)} of {len(evidence.committed)}"] if lost else []


def no_phantom(evidence):
    """T2: events that were rolled back never arrive, and none arrives changed."""
    found = []
    for where in (evidence.arrivals, evidence.effects):
        phantoms = {event_id for event_id, *_ in where} - set(evidence.committed)
        if phantoms:
            found.append(f"T2 phantom: {some(phantoms)} never committed")
        changed = {
            event_id
            for event_id, *seen in where
            if event_id in evidence.committed
            and tuple(seen) != evidence.committed[event_id][: len(seen)]
        }
        if changed:
            found.append(f"T2 arrived changed: {some(changed)}")
    return found


def order_kept(evidence):
    """T3: within a key, events are first seen in the order of writing, and strict ones gapless;
    so are effects.
    """
    strict = evidence.strict
    return [
        *_order("arrived", evidence.arrivals, strict),
        *_order("took effect", evidence.effects, strict),
    ]


def _order(what, where, strict):
    found, last, seen = [], {}, set()
    for event_id, key, n, *_ in where:
        if event_id in seen:
            continue
        seen.add(event_id)
        if n <= last.get(key, 0):
            found.append(f"T3 order: key {key}: {n} first {what} after {last[key]} ({event_id})")
        elif key in strict and n != last.get(key, 0) + 1:
            before = last.get(key, 0)
            found.append(f"T3 gap: key {key}: {n} first {what} after {before} ({event_id})")
        last[key] = max(n, last.get(key, 0))
    return found[:5]


def copies_explained(evidence):
    """T4: a message is repeated only where something went wrong with it.

    Between its commit and its settle, either its lane was taken by another from one who had not
    given it back, or by the same one after its lease had lapsed, or its owner noted that it had lost it, or that nobody knows how an attempt at
    its key ended.
    """
    copies = Counter(event_id for event_id, *_ in evidence.arrivals)
    repeated = {i for i, count in copies.items() if count > 1 and i in evidence.committed}
    if not repeated:
        return []
    began, ended = _lives(evidence)
    torn, tried = _reasons(evidence)
    unexplained = set()
    for event_id in repeated:
        key = evidence.committed[event_id][0]
        lane = lane_of(key_hash(None, key, ""))
        first = began.get(event_id, 0.0) - WINDOW_SECONDS
        last = ended.get(event_id, float("inf")) + WINDOW_SECONDS
        if not any(first <= at <= last for at in (*torn[lane], *tried[key])):
            unexplained.add(event_id)
    return [f"T4 unexplained copies: {some(unexplained)}"] if unexplained else []


def _lives(evidence):
    """Return {id: when its producer was answered}, {id: when it was settled}."""
    began = {
        event_id: line["at"]
        for line in evidence.histories
        if line["what"] == "ok"
        for event_id in line["ids"]
    }
    return began, {row.id: row.at for row in evidence.settled}


def _reasons(evidence):
    """Return when each lane was torn from its owner, and when an attempt at a key went wrong."""
    torn, tried = defaultdict(list), defaultdict(list)
    for taken in evidence.leases:
        lapsed = taken.before == taken.owner and taken.left is not None and taken.left < 0
        others = taken.before not in (None, "", taken.owner)
        if taken.stream == STREAM and taken.owner and (others or lapsed):
            torn[taken.lane].append(taken.at)
    for line in evidence.histories:
        if (
            line["what"] == "attempt" and line["id"] in evidence.committed
            and line["verdict"] not in CLEAR
        ):  # fmt: skip
            tried[evidence.committed[line["id"]][0]].append(line["at"])
        if line["what"] == "lost":  # its lease lapsed, or it gave up what hung
            for lane in line["lanes"]:
                torn[lane].append(line["at"])
    return torn, tried


def one_owner(evidence):
    """T5: by the store's own clock, a lane is taken only when it is free or its lease has ended."""
    found, tokens = [], defaultdict(int)
    for taken in evidence.leases:
        place = f"{taken.stream}/{taken.lane}"
        if taken.token < tokens[place]:
            found.append(f"T5 lane {place}: token {taken.token} after {tokens[place]}")
        tokens[place] = taken.token
        if (
            taken.owner and taken.before and taken.owner != taken.before
            and taken.left is not None and taken.left > CLOCK_SLACK_SECONDS
        ):  # fmt: skip
            found.append(f"T5 lane {place} was taken {taken.left:.3f} s before its lease ended")
    return found[:5]


def stale_settles_change_nothing(evidence):
    """T6: only the owner of its lane settles an event; no other relay says that it did."""
    found, owners = [], defaultdict(set)
    for line in evidence.histories:
        if line["what"] == "taken":
            owners[line["process"]].add(line["owner"])
    by_id = defaultdict(set)
    for row in evidence.settled:
        by_id[row.id].add(row.owner)
        if row.owner is None:
            found.append(f"T6 {row.id} was settled while its lane had no owner")
        elif row.writer and row.owner not in owners[row.writer]:
            found.append(f"T6 {row.id} was settled by {row.writer}, which did not own its lane")
    for line in evidence.histories:
        if line["what"] == "delivered":
            stolen = {i for i in line["ids"] if not by_id[i] & owners[line["process"]]}
            if stolen:
                found.append(
                    f"T6 {line['process']} says it settled what it did not: {some(stolen)}"
                )
    twice = {i for i, rows in Counter(row.id for row in evidence.settled).items() if rows > 1}
    if twice:
        found.append(f"T6 became done twice: {some(twice)}")
    return found[:5]


def effects_once(evidence):
    """T7: every event but poison takes effect once, and an ack comes after the effect."""
    found = []
    counts = Counter(event_id for event_id, *_ in evidence.effects)
    if twice := {i for i, count in counts.items() if count > 1}:
        found.append(f"T7 took effect more than once: {some(twice)}")
    due = {i for i, row in evidence.committed.items() if row[3] not in evidence.guilty}
    due -= set(evidence.cancelled)
    if never := due - set(counts) - set(evidence.dead) - set(evidence.buried):
        found.append(f"T7 never took effect: {some(never)}")
    guilty = set(evidence.committed) - due
    if wrongly := guilty & set(counts):
        told = "took effect although its handler misbehaved or gave up"
        found.append(f"T7 {told}: {some(wrongly)}")
    acked = {line["id"] for line in evidence.histories if line["what"] == "ack"}
    if empty := (acked & set(evidence.committed)) - set(counts) - set(evidence.buried):
        found.append(f"T7 acknowledged without an effect: {some(empty)}")
    return found


def dead_letters_whole(evidence):
    """T8: only poison is buried, by the process that handles it, and its dead letter is whole."""
    others = tuple(fate for fate in evidence.guilty if fate != "oversize")
    at_relay = ("oversize", *others) if evidence.by_handlers else ("oversize",)
    at_consumer = () if evidence.by_handlers else others
    return [
        *_buried(evidence.committed, evidence.dead, at_relay, "in the outbox"),
        *_buried(evidence.committed, evidence.buried, at_consumer, "in the inbox"),
    ]


def _buried(committed, dead, fates, where):
    guilty = {i: row[:3] for i, row in committed.items() if row[3] in fates}
    found = []
    innocent, alive = set(dead) - set(guilty), set(guilty) - set(dead)
    if innocent:
        found.append(f"T8 buried {where} although they were valid: {some(innocent)}")
    if alive:
        found.append(f"T8 poison that is not dead {where}: {some(alive)}")
    spoilt = {i for i, row in dead.items() if i in guilty and row != guilty[i]}
    if spoilt:
        found.append(f"T8 dead letters {where} that are not whole: {some(spoilt)}")
    return found


def foreign_ends(evidence):
    """T12: a valid foreign message or row takes effect once, an invalid one is one dead letter.

    A replay resets the columns that made some rows invalid: these may take effect then.
    """
    replayed = any(line["what"] == "replaying" for line in evidence.histories)
    met, dead = Counter(evidence.met), Counter(evidence.foreign_dead)
    wrong = defaultdict(list)
    for number, (_, end, _, tries) in evidence.foreign.items():
        # What cannot be read has no id: sent twice, it is two dead letters.
        mended = replayed and end == "dead" and met[number] == 1
        end_now = "done" if mended else end
        if word := _wrong(end_now, met[number], dead[number], tries):
            wrong[word].append(number)
    for number in (met.keys() | dead.keys()) - evidence.foreign.keys():
        wrong["seen, but never sent"].append(number)
    return [f"T12 foreign: {word}: {some(numbers)}" for word, numbers in wrong.items()]


def _wrong(end, effects, dead_letters, tries):
    """Say what is wrong with how it ended, if anything."""
    if effects > 1:
        return "took effect more than once"
    if dead_letters > tries or (effects and dead_letters):
        return "more than one end"
    if end == "maybe":
        return ""
    if not effects and not dead_letters:
        return "neither effect nor dead letter"
    if (end == "done" and dead_letters) or (end == "dead" and effects):
        return f"should be {end}"
    return ""


def foreign_order(evidence):
    """T12: those of one key take effect in the order in which they were sent."""
    found, last = [], {}
    for number in dict.fromkeys(evidence.met):
        key = evidence.foreign[number].key if number in evidence.foreign else ""
        if key and number < last.get(key, -1):
            found.append(f"T12 order: foreign key {key}: {number} took effect after {last[key]}")
        last[key] = max(number, last.get(key, -1))
    return found[:5]


def operators_obeyed(evidence):
    """T14: a cancelled event has no effect, an edited one is sent instead of its dead letter and
    never with it, and every operation ends.
    """
    found = [f"T14 operation {one}" for one in evidence.undone]
    seen = {event_id for event_id, *_ in (*evidence.arrivals, *evidence.effects)}
    if sent := seen & set(evidence.cancelled):
        found.append(f"T14 cancelled, but sent: {some(sent)}")
    if evidence.nowhere:
        found.append(f"T14 edited, but nowhere: {some(evidence.nowhere)}")
    edited = {line["id"]: line["at"] for line in evidence.histories if line["what"] == "edited"}
    tried = {
        line["id"]
        for line in evidence.histories
        if line["what"] == "attempt" and line["at"] > edited.get(line["id"], line["at"])
    }
    if tried:
        found.append(f"T14 dead letters that were edited, and tried again: {some(tried)}")
    return found


def some(ids):
    """Say how many, and name a few."""
    return f"{len(ids)} ({', '.join(sorted(map(str, ids))[:3])})"
