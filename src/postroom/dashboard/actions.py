"""Actions of operators: each is planned first (a dry run), then carried out once.

A plan reads only. It says in words what the action will do, and carries the function that does it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from postroom.admin.followers import with_followers
from postroom.admin.selection import Chosen, Selection, fetch, remember, replaced, walk
from postroom.admin.texts import cut, many
from postroom.commands import UNSENT, Edit
from postroom.dashboard.given import Given
from postroom.dashboard.settings import Person, Role
from postroom.dashboard.watch import StoreWatch
from postroom.engine.operations.request import ReplayRequest
from postroom.errors import ConfigError, NotFoundError, ReplacedError
from postroom.event import new_id
from postroom.model.controls import CONSUMER, check_control, check_limits, limits_text
from postroom.operation import Change, OperationState
from postroom.record import Record, State
from postroom.store import Store
from postroom.stores.edits import check_editable, edited

MOST: Final = 1_000  # events of an action that is not a stored operation
STEP: Final = 500
COUNTED: Final = 10_000
_OVER = (State.DEAD, State.DONE)
_UNFINISHED = (State.PENDING, State.FAILED, State.PROCESSING)


class Outcome(NamedTuple):
    """The result of an action.

    operation   the stored operation that continues it
    sent_as     the id of the new event
    """

    text: str
    changed: int = 0
    operation: str | None = None
    sent_as: str | None = None


class Order(NamedTuple):
    """The person that gives the order, and the reason."""

    person: Person
    reason: str


Run = Callable[[Store, Order], Awaitable[Outcome]]


class Plan(NamedTuple):
    """The result of a dry run.

    question    what will be done, as a question
    effects     the changes, in words
    number      of events; None: not counted
    examples    ids of the first events
    """

    verb: str
    question: str
    effects: Sequence[str]
    number: int | None
    about: str
    run: Run
    examples: Sequence[str] = ()

    def facts(self) -> dict[str, Any]:
        return {
            "verb": self.verb,
            "question": self.question,
            "effects": list(self.effects),
            "count": self.number,
            "examples": list(self.examples),
        }


class Action(NamedTuple):
    """A verb: the role it needs, and whether it needs the right to see payloads."""

    label: str
    role: Role
    plan: Callable[[StoreWatch, Given], Awaitable[Plan]]
    payloads: bool = False
    is_final: bool = False  # it cannot be undone

    def is_for(self, person: Person) -> bool:
        """Return whether a person may do it."""
        return person.role.includes(self.role) and (person.payloads or not self.payloads)


# -- events ---------------------------------------------------------------------------------------
async def _replay(watch: StoreWatch, given: Given) -> Plan:
    ids, copies = given.texts("ids"), given.flag("new_id")
    if not ids:
        return await _replay_by_filter(watch, given)
    store = await watch.open()
    if given.flag("followers"):
        found = await with_followers(store, ids, (State.DEAD,))
    else:
        found = await fetch(store, ids, _OVER)
    chosen = [remember(record) for record in found]
    for event_id, sent_as in (await replaced(store, chosen)).items():
        raise ReplacedError(event_id, sent_as)

    async def run(store: Store, order: Order) -> Outcome:
        names = [one.id for one in chosen]
        changed = await store.replay(names, new_id=copies, by=order.person.name)
        return Outcome(_told("Replayed", changed, len(names)), changed)

    return _plan("replay", "Replay", found, _replay_effects(chosen, copies=copies), run)


async def _replay_by_filter(watch: StoreWatch, given: Given) -> Plan:
    selection = given.selection(State.DEAD)
    if selection.filter.state not in _OVER:
        raise ConfigError("only dead and done events can be replayed")
    if not selection.is_narrow and not given.flag("all"):
        raise ConfigError("no events selected: give ids, filters, or all")
    if selection.filter.correlation_id or selection.filter.causation_id:
        raise ConfigError("a replay by correlation or causation id is not possible; select events")
    copies, rate, canary = given.flag("new_id"), given.rate("rate"), given.flag("canary")
    limit = given.number("limit", 1, 1_000_000_000)
    count = await _count(watch, selection)
    request = ReplayRequest(selection.filter, selection.group, copies, limit, rate, canary)
    total = None if count is None else min(count, limit or count)

    async def run(store: Store, order: Order) -> Outcome:
        about = f"{selection}: {order.reason}"
        new = request.new_operation(total, about)
        operation, is_new = await store.start_operation(new, by=order.person.name)
        if is_new:
            return Outcome(f"Started operation {operation.id}; a relay runs it", 0, operation.id)
        state = OperationState(operation.state)
        hint = "" if state == OperationState.RUNNING else "; resume it, or cancel it"
        text = f"Operation {operation.id} of {cut(operation.who, 60)} selects the same events"
        return Outcome(f"{text} and is {state}{hint}", 0, operation.id)

    effects = [*_replay_effects([], copies=copies), "it is a stored operation: a relay runs it"]
    number = "all events" if total is None else f"{total:,}{'' if total < COUNTED else ' or more'} "
    number = number if total is None else number + ("event" if total == 1 else "events")
    question = f"Replay {number} that match {selection}?"
    return Plan("replay", question, effects, total, f"replay {selection}", run)


async def _count(watch: StoreWatch, selection: Selection) -> int | None:
    """Return the number of matching events, if an index or the causes of dead letters tell it."""
    wanted = selection.filter
    if selection.group is not None:
        plain = wanted._replace(state=None, type=None)
        if plain._replace(limit=0) == type(wanted)(limit=0):
            groups = await watch.groups.get()
            return next((one.how_many for one in groups if one.id == selection.group), None)
        return None
    if wanted._replace(state=None, stream=None) == type(wanted)() and wanted.state == State.DEAD:
        return (await (await watch.open()).search.reach(wanted, COUNTED)).rows
    return None


async def _bury(watch: StoreWatch, given: Given) -> Plan:
    store = await watch.open()
    whole = given.flag("followers")
    if whole:
        found = await with_followers(store, given.texts("ids"), _UNFINISHED)
    else:
        found = await _chosen(store, given, _UNFINISHED, State.FAILED)

    async def run(store: Store, order: Order) -> Outcome:
        by = order.person.name
        changed = 0
        for step in [found] if whole else _steps(found):
            names = [one.id for one in step]
            changed += await store.bury(names, order.reason, by=by, whole=whole)
        return Outcome(_told("Buried", changed, len(found)), changed)

    effects = ["they become dead letters; their payloads are kept, and a replay sends them again"]
    if any(one.key is not None for one in found):
        effects.append("later events of their keys continue")
    return _plan("bury", "Bury", found, effects, run)


async def _skip(watch: StoreWatch, given: Given) -> Plan:
    (record,) = await fetch(await watch.open(), [given.need("ids")], _UNFINISHED)

    async def run(store: Store, order: Order) -> Outcome:
        await store.skip(record.id, order.reason, by=order.person.name)
        return Outcome("Skipped 1 event; a marker is sent in its place", 1)

    effects = [
        "it becomes a dead letter, and a postroom.skipped marker is sent in its place",
        "for strict order: consumers no longer wait for its number",
    ]
    return _plan("skip", "Skip", [record], effects, run)


async def _retry(watch: StoreWatch, given: Given) -> Plan:
    found = await _chosen(await watch.open(), given, (State.FAILED,), State.FAILED)

    async def run(store: Store, order: Order) -> Outcome:
        changed = 0
        for step in _steps(found):
            changed += await store.retry_now([one.id for one in step], by=order.person.name)
        return Outcome(_told("Made due", changed, len(found)), changed)

    effects = ["they are sent at once, instead of at their next attempt; attempts stay counted"]
    return _plan("retry-now", "Retry", found, effects, run)


async def _purge(watch: StoreWatch, given: Given) -> Plan:
    found = await _chosen(await watch.open(), given, UNSENT, State.DEAD)

    async def run(store: Store, order: Order) -> Outcome:
        changed = 0
        for step in _steps(found):
            changed += await store.purge([one.id for one in step], by=order.person.name)
        return Outcome(_told("Deleted", changed, len(found)), changed)

    effects = ["payloads are deleted for good: these events cannot be replayed afterwards"]
    if numbered := sum(bool(one.kseq) for one in found):
        effects.append(f"{numbered:,} have a number of strict order that was not skipped")
    return _plan("purge", "Delete", found, effects, run)


async def _edit(watch: StoreWatch, given: Given) -> Plan:
    store = await watch.open()
    event_id = given.need("ids")
    there = (await store.look_up([event_id])).get(event_id)
    sent_as = None if there is None else there.replaced_by
    record = check_editable(event_id, await store.get(event_id), sent_as)
    payload = given.text("payload", 2_000_000)
    changes = Edit(
        None if payload is None else payload.encode(),
        given.text("content_type"),
        _headers(given.text("headers", 200_000)),
        given.flag("tombstone"),
    )
    edited(record, changes, new_id())  # refused here as the store would refuse it

    async def run(store: Store, order: Order) -> Outcome:
        sent = await store.edit(event_id, changes, by=order.person.name)
        return Outcome(f"Sent as {sent}; the dead letter stays, marked as replaced", 1, None, sent)

    effects = [
        "it is sent under a new id, after the events of its key; inboxes treat it as new",
        "the dead letter stays, marked as replaced, and is never sent",
    ]
    return _plan("edit", "Edit and send", [record], effects, run)


def _headers(text: str | None) -> Mapping[str, str] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError("headers must be a JSON object of texts") from error
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise ConfigError("headers must be a JSON object of texts")
    return found


async def _chosen(
    store: Store, given: Given, states: Sequence[State], usual: State
) -> list[Record]:
    """Return the events of ids, or the first MOST of a filter."""
    ids = given.texts("ids")
    if ids:
        return await fetch(store, ids, states)
    selection = given.selection(usual)
    if selection.filter.state not in states:
        raise ConfigError(f"the events must be {' or '.join(states)}")
    if not selection.is_narrow and not given.flag("all"):
        raise ConfigError("no events selected: give ids, filters, or all")
    found: list[Record] = []
    async for record in walk(store, selection):
        found.append(record._replace(payload=b""))
        if len(found) == MOST:
            break
    if not found:
        raise NotFoundError(f"no event matches {selection}")
    return found


def _steps(found: Sequence[Record]) -> list[Sequence[Record]]:
    return [found[at : at + STEP] for at in range(0, len(found), STEP)]


def _replay_effects(chosen: Sequence[Chosen], *, copies: bool) -> list[str]:
    effects = []
    if not chosen or any(event.keyed for event in chosen):
        effects.append("order within a key is kept, but newer events of the key were sent earlier")
    if copies:
        effects.append("copies with new ids: inboxes treat them as new events and handle them")
    else:
        effects.append("same ids: inboxes ignore events that they have handled")
    return effects


def _plan(verb: str, word: str, found: Sequence[Record], effects: Sequence[str], run: Run) -> Plan:
    names = [one.id for one in found]
    keys = len({one.key_hash for one in found if one.key is not None})
    of_keys = f" of {many(keys, 'key')}" if keys else ""
    named = f" {cut(names[0], 80)}" if len(names) == 1 else ""
    count = "the event" if len(names) == 1 else many(len(names), "event")
    effects = list(effects)
    if len(found) == MOST:
        effects.append(f"at most {MOST:,} events at a time: repeat it for the rest")
    about = f"{verb} {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
    return Plan(
        verb, f"{word} {count}{named}{of_keys}?", effects, len(names), about, run, names[:5]
    )


def _told(word: str, changed: int, chosen: int) -> str:
    rest = f"; {chosen - changed:,} changed meanwhile" if chosen > changed else ""
    return f"{word} {many(changed, 'event')}{rest}"


# -- controls and operations ----------------------------------------------------------------------
def _control(given: Given) -> tuple[str, str]:
    kind, name = given.need("kind"), given.need("name")
    check_control(kind, name)
    return kind, name


async def _pause(watch: StoreWatch, given: Given) -> Plan:
    kind, name = _control(given)
    seconds = given.seconds("for")
    await watch.open()

    async def run(store: Store, order: Order) -> Outcome:
        await store.set_control(
            kind, name, pause=True, seconds=seconds, reason=order.reason, by=order.person.name
        )
        return Outcome(f"Paused {kind} {cut(name, 80)}", 1)

    what = "receiving" if kind == CONSUMER else "sending"
    effects = [
        f"{what} stops in all processes within a second; events in flight finish",
        "nothing is lost and no attempt is spent",
    ]
    end = "until it is resumed" if seconds is None else f"for {seconds:g} s"
    question = f"Pause {kind} {cut(name, 80)} {end}?"
    return Plan("pause", question, effects, None, f"pause {kind} {name}", run)


async def _resume(watch: StoreWatch, given: Given) -> Plan:
    kind, name = _control(given)
    await watch.open()

    async def run(store: Store, order: Order) -> Outcome:
        changed = await store.set_control(kind, name, pause=False, by=order.person.name)
        told = f"Resumed {kind} {cut(name, 80)}" if changed else "It is not paused"
        return Outcome(told, int(changed))

    effects = ["all processes go on within seconds"]
    question = f"Resume {kind} {cut(name, 80)}?"
    return Plan("resume", question, effects, None, f"resume {kind} {name}", run)


async def _limit(watch: StoreWatch, given: Given) -> Plan:
    kind, name = _control(given)
    rate, in_flight = given.read("per_second", _float), given.number("in_flight", 1, 1_000_000)
    check_limits(kind, name, rate, in_flight)
    await watch.open()

    async def run(store: Store, order: Order) -> Outcome:
        changed = await store.set_limits(
            kind, name, per_second=rate, in_flight=in_flight, by=order.person.name
        )
        told = f"{kind} {cut(name, 80)}: {limits_text(rate, in_flight)}"
        return Outcome(f"Limited {told}" if changed else "There was no limit", int(changed))

    limits = limits_text(rate, in_flight)
    effects = ["both limits are replaced, for all relays together, within seconds"]
    question = f"Limit {kind} {cut(name, 80)}: {limits}?"
    return Plan("limit", question, effects, None, f"limit {kind} {name}: {limits}", run)


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number") from None


def _change(change: Change, past: str, effect: str) -> Callable[..., Awaitable[Plan]]:
    async def plan(watch: StoreWatch, given: Given) -> Plan:
        name = given.need("operation")
        found = await (await watch.open()).operation(name)
        if found is None:
            raise NotFoundError(f"no operation with id {name!r}")
        if found.state not in change.before and found.state != change.after:
            raise ConfigError(f"operation {name} is {found.state}; it cannot be {past}")

        async def run(store: Store, order: Order) -> Outcome:
            changed = await store.change_operation(name, change, by=order.person.name)
            word = f"Operation {name} is {past}" if changed else "Nothing changed"
            return Outcome(word, int(changed), name)

        verb = f"operation-{change}"
        question = f"{str(change).capitalize()} operation {name}, {found.handled:,} events done?"
        return Plan(verb, question, [effect], None, f"{verb} {name}", run)

    return plan


ACTIONS: Final[Mapping[str, Action]] = {
    "replay": Action("Replay", Role.OPERATOR, _replay),
    "retry-now": Action("Retry now", Role.OPERATOR, _retry),
    "bury": Action("Bury", Role.OPERATOR, _bury),
    "skip": Action("Skip", Role.OPERATOR, _skip),
    "edit": Action("Edit and send", Role.OPERATOR, _edit, payloads=True),
    "purge": Action("Delete", Role.ADMIN, _purge, is_final=True),
    "pause": Action("Pause", Role.OPERATOR, _pause),
    "resume": Action("Resume", Role.OPERATOR, _resume),
    "limit": Action("Limit", Role.OPERATOR, _limit),
    "operation-pause": Action(
        "Pause", Role.OPERATOR,
        _change(Change.PAUSE, "paused", "it stops after its current step, until it is resumed"),
    ),
    "operation-resume": Action(
        "Resume", Role.OPERATOR,
        _change(Change.RESUME, "resumed", "a relay continues it where it stopped"),
    ),
    "operation-cancel": Action(
        "Cancel", Role.OPERATOR,
        _change(Change.CANCEL, "cancelled", "events that it has not reached stay unchanged"),
    ),
}  # fmt: skip
