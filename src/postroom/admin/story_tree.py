"""The story of an event: a tree of causes from the rows of several stores. No input or output."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from postroom.admin.texts import cut, duration, instant, many
from postroom.record import State

COLUMNS = 80
_INDENT, _DEEPEST = 2, 12
_RANK = [
    State.DEAD, State.FAILED, State.PROCESSING, State.PENDING, State.EXPIRED, State.CANCELLED,
    State.DONE,
]  # fmt: skip
_WAITING = (State.FAILED, State.PROCESSING, State.PENDING)
_PLAIN = re.compile(r"[^\w .:/-]")
_SECOND = 1_000_000


class Place(NamedTuple):
    """An event in one place: the outbox of a store, or the inbox of a consumer there.

    inbox       the consumer's name; None: the outbox
    """

    store: str
    inbox: str | None
    state: str
    at_us: int
    settled_us: int | None = None
    attempts: int = 0
    next_attempt_us: int | None = None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "store": self.store,
            "inbox": self.inbox,
            "state": self.state,
            "at": instant(self.at_us),
            "settled_at": instant(self.settled_us),
            "attempts": self.attempts,
            "next_attempt_at": instant(self.next_attempt_us),
            "last_error": self.error,
        }


@dataclass
class Node:
    """An event in all its places.

    cause       the id of the event that caused it
    found       False: another event names it as its cause, but no store has it
    """

    id: str
    type: str = ""
    cause: str | None = None
    correlation_id: str | None = None
    places: list[Place] = field(default_factory=list)
    found: bool = True
    in_cycle: bool = False

    @property
    def state(self) -> str:
        """The state that an operator must know first: dead before waiting before done."""
        states = {place.state for place in self.places}
        return next((str(one) for one in _RANK if one in states), min(states, default=""))

    @property
    def at_us(self) -> int:
        """The time of its first writing."""
        return min((place.at_us for place in self.places), default=0)

    @property
    def end_us(self) -> int:
        return max((p.settled_us or p.at_us for p in self.places), default=0)


class Shown(NamedTuple):
    """A line of the tree: a node at its depth, or the number of children left out there."""

    depth: int
    node: Node | None
    parent: Node | None
    left_out: int = 0


class Story:
    """The nodes, and which of them caused which."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = {node.id: node for node in sorted(nodes, key=lambda n: (n.at_us, n.id))}
        for node in list(self.nodes.values()):
            if node.cause is not None and node.cause not in self.nodes:
                self.nodes[node.cause] = Node(node.cause, found=False)
        self._children: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            if node.cause is not None:
                self._children.setdefault(node.cause, []).append(node)
        self.roots = self._find_roots()

    @property
    def events(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.found]

    def _find_roots(self) -> list[Node]:
        """Return where the tree begins. In a cycle, which only edited data has, it is the oldest
        event: its cause is left out.
        """
        roots = [node for node in self.nodes.values() if node.cause is None]
        reached = self._reached(roots)
        for node in self.nodes.values():
            if node.id not in reached:
                node.in_cycle = True
                self._children[node.cause or ""].remove(node)
                roots.append(node)
                reached |= self._reached([node])
        return sorted(roots, key=lambda n: (self._began(n), n.id))

    def _began(self, node: Node) -> int:
        if node.found:
            return node.at_us
        return min((one.at_us for one in self._children.get(node.id, ())), default=0)

    def _reached(self, roots: Sequence[Node]) -> set[str]:
        found: set[str] = set()
        stack = [node.id for node in roots]
        while stack:
            node_id = stack.pop()
            if node_id not in found:
                found.add(node_id)
                stack += [one.id for one in self._children.get(node_id, ())]
        return found

    def walk(self, children: int) -> Iterator[Shown]:
        """Yield the tree from its roots, of each event at most this many children."""
        stack = [Shown(0, node, None) for node in reversed(self.roots)]
        while stack:
            shown = stack.pop()
            yield shown
            if shown.node is None:
                continue
            below = self._children.get(shown.node.id, [])
            if len(below) > children:
                rest = len(below) - children
                stack.append(Shown(shown.depth + 1, None, shown.node, rest))
            first = below[:children]
            stack += [Shown(shown.depth + 1, node, shown.node) for node in reversed(first)]

    def summary(self) -> str:
        """Return the counts, and how long it took, as one line."""
        events = self.events
        counts = Counter(_word(node.state) for node in events)
        told = ", ".join(f"{counts[word]:,} {word}" for word in sorted(counts))
        times = [node.at_us for node in events]
        took = max((node.end_us for node in events), default=0) - min(times, default=0)
        return f"{many(len(events), 'event')}: {told}; {duration(max(0, took) / _SECOND)}"


def _word(state: str) -> str:
    return "waiting" if state in _WAITING else state


# -- text -----------------------------------------------------------------------------------------
def render(story: Story, children: int) -> Iterator[str]:
    """Yield the tree in 80 columns: type, state, time since the cause, store; then the id."""
    for shown in story.walk(children):
        indent = " " * (_INDENT * min(shown.depth, _DEEPEST))
        if shown.depth > _DEEPEST:
            indent += f"({shown.depth}) "
        node = shown.node
        if node is None:
            yield f"{indent}… {shown.left_out:,} more, left out: --children"
        elif not node.found:
            yield _fit(indent, f"{node.id}: not in these stores (pruned?)")
        else:
            yield from _lines(indent, node, shown.parent)


def _lines(indent: str, node: Node, parent: Node | None) -> Iterator[str]:
    first, *others = node.places
    name = _fit(indent, node.type, 46)
    told = f"{cut(node.state, 10):<10} {_since(node, parent):>9} {cut(_name(first), 12)}"
    yield f"{name:<46} {told}".rstrip()
    yield f"{indent}  {cut(node.id, 200)}" + (" (a cycle of causes)" if node.in_cycle else "")
    if first.error and first.state != State.DONE:
        yield from _trouble(indent, first)
    for place in others:
        waited = duration(max(0, place.at_us - node.at_us) / _SECOND)
        yield _fit(f"{indent}  ", f"→ {_name(place)}: {place.state}, +{waited}")
        if place.error and place.state != State.DONE:
            yield from _trouble(indent, place)


def _trouble(indent: str, place: Place) -> Iterator[str]:
    due = f", next {instant(place.next_attempt_us)}" if place.next_attempt_us else ""
    yield _fit(f"{indent}    ", f"{many(place.attempts, 'attempt')}{due}: {place.error}")


def _since(node: Node, parent: Node | None) -> str:
    if parent is None or not parent.found:
        return ""
    apart = (node.at_us - parent.at_us) / _SECOND
    return f"-{duration(-apart)}" if apart < 0 else f"+{duration(apart)}"


def _name(place: Place) -> str:
    return place.store if place.inbox is None else f"{place.store}/{place.inbox}"


def _fit(indent: str, text: str, columns: int = COLUMNS) -> str:
    return indent + cut(text, columns - len(indent))


# -- Mermaid --------------------------------------------------------------------------------------
def mermaid(story: Story, children: int) -> Iterator[str]:
    """Yield a Mermaid flowchart."""
    yield "flowchart TD"
    names: dict[int, str] = {}
    for number, shown in enumerate(story.walk(children)):
        name, node = f"n{number}", shown.node
        if node is None:
            label, style = f"{shown.left_out:,} more", ""
        elif not node.found:
            label, style = f"{_safe(node.id)}<br/>not in these stores", ":::missing"
        else:
            names[id(node)] = name
            label = f"{_safe(node.type)}<br/>{_safe(node.id)}<br/>{_safe(node.state)}"
            style = f":::{_word(node.state)}" if node.state != State.DONE else ""
            for place in node.places:
                label += f"<br/>{_safe(_name(place))}"
        if node is not None:
            names[id(node)] = name
        yield f'  {name}["{label}"]{style}'
        if shown.parent is not None:
            apart = _since(node, shown.parent) if node is not None else ""
            arrow = f"-->|{_safe(apart)}|" if apart else "-->"
            yield f"  {names[id(shown.parent)]} {arrow} {name}"
    yield "  classDef dead fill:#f8d7da,stroke:#b02a37"
    yield "  classDef waiting fill:#fff3cd,stroke:#997404"
    yield "  classDef missing stroke-dasharray:4"


def _safe(text: str) -> str:
    """Return text for a Mermaid label: other characters as their numbers."""
    return _PLAIN.sub(lambda found: f"#{ord(found[0])};", cut(text, 80))


# -- JSON -----------------------------------------------------------------------------------------
def to_json(story: Story) -> list[dict[str, Any]]:
    """Return all events, oldest first."""
    return [
        {
            "id": node.id,
            "type": node.type,
            "state": node.state,
            "causation_id": node.cause,
            "correlation_id": node.correlation_id,
            "cause_is_missing": node.cause is not None and not story.nodes[node.cause].found,
            "in_cycle": node.in_cycle,
            "places": [place.to_json() for place in node.places],
        }
        for node in story.events
    ]
