"""The tree of a story, from rows as they may be."""

from __future__ import annotations

import pytest

from postroom.admin.story_tree import Node, Place, Story, mermaid, render, to_json

SECOND = 1_000_000


def node(name, cause=None, at=0, state="done", **more):
    place = Place("orders", None, state, at * SECOND, None, **more)
    return Node(name, f"{name}.happened", cause, places=[place])


def lines(*nodes, children=20):
    found = list(render(Story(nodes), children))
    assert all(len(line) <= 80 for line in found), found
    return found


def test_a_tree_with_times_since_the_cause():
    found = lines(
        node("b", "a", 2), node("c", "b", 5, "failed", attempts=3, error="boom"), node("a")
    )
    assert [line.split() for line in found] == [
        ["a.happened", "done", "orders"],
        ["a"],
        ["b.happened", "done", "+2.0", "s", "orders"],
        ["b"],
        ["c.happened", "failed", "+3.0", "s", "orders"],
        ["c"],
        ["3", "attempts:", "boom"],
    ]
    assert [len(line) - len(line.lstrip()) for line in found] == [0, 2, 2, 4, 4, 6, 8]


def test_one_event_in_two_places_is_one_node():
    both = node("a")
    both.places.append(Place("payments", "billing", "dead", 2 * SECOND, error="no such account"))
    story = Story([both])
    assert story.summary() == "1 event: 1 dead; 2.0 s"
    assert lines(both)[2:] == [
        "  → payments/billing: dead, +2.0 s",
        "    0 attempts: no such account",
    ]
    assert to_json(story)[0]["state"] == "dead"


def test_a_cause_that_is_missing_is_named():
    found = lines(node("b", "pruned", 2), node("c", "pruned", 3))
    assert found[0] == "pruned: not in these stores (pruned?)"
    assert [line.split()[0] for line in found[1:]] == ["b.happened", "b", "c.happened", "c"]
    assert [one["cause_is_missing"] for one in to_json(Story([node("b", "pruned")]))] == [True]


@pytest.mark.parametrize(
    "causes",
    [{"a": "a"}, {"a": "b", "b": "a"}, {"a": "c", "b": "a", "c": "b", "d": "a", "root": None}],
    ids=["itself", "two", "three with a branch"],
)
def test_a_cycle_of_causes_ends(causes):
    nodes = [node(name, cause, at) for at, (name, cause) in enumerate(causes.items())]
    found = lines(*nodes)
    for name in causes:
        assert sum(line.strip().startswith(f"{name}.happened") for line in found) == 1
    assert sum("(a cycle of causes)" in line for line in found) == 1


def test_many_children_are_counted_and_left_out():
    found = lines(node("a"), *(node(f"c{n:04}", "a", n) for n in range(5_000)), children=3)
    assert len(found) == 2 + 3 * 2 + 1
    assert found[-1] == "  … 4,997 more, left out: --children"
    drawn = list(mermaid(Story([node("a"), *(node(f"c{n}", "a") for n in range(99))]), 2))
    assert any("97 more" in line for line in drawn)


def test_a_very_deep_story_stays_readable():
    nodes = [node(f"e{n:05}", f"e{n - 1:05}" if n else None, n) for n in range(5_000)]
    found = lines(*nodes)
    assert len(found) == 10_000
    assert "(4999) e04999.happened" in found[-2]


def test_hostile_text_stays_in_its_place():
    evil = 'x"]\n  click n0 "javascript:alert(1)"\x1b[31m'
    odd = Node(evil, evil, places=[Place(evil, None, "done", 0)])
    for line in lines(odd):
        assert line.isprintable()
    drawn = list(mermaid(Story([odd]), 9))
    assert len(drawn) == 5
    assert drawn[1].count('"') == 2
    assert "]" not in drawn[1].removesuffix('"]').partition('["')[2]


def test_a_flowchart():
    drawn = list(mermaid(Story([node("a"), node("b", "a", 2, "dead")]), 9))
    assert drawn[:4] == [
        "flowchart TD",
        '  n0["a.happened<br/>a<br/>done<br/>orders"]',
        '  n1["b.happened<br/>b<br/>dead<br/>orders"]:::dead',
        "  n0 -->|#43;2.0 s| n1",
    ]
