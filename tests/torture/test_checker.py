"""The checker of the torture notices what it is there for, and is quiet when all is well."""

import json
import random
from types import SimpleNamespace

import pytest

from postroom.record import key_hash, lane_of
from tests.torture import faults, operators
from tests.torture.checker import Evidence, check
from tests.torture.excerpt import excerpt
from tests.torture.foreign import Foreign
from tests.torture.history import History, read
from tests.torture.marks import is_marked, mark_in
from tests.torture.shrinking import shrink
from tests.torture.worlds import SettledRow, Taken, guilty_of, padding_of, size_of

LANE = lane_of(key_hash(None, "a", ""))
COMMITTED = {
    "a1": ("a", 1, 10, ""),
    "a2": ("a", 2, 10, ""),
    "b1": ("b", 1, 10, ""),
    "big": ("b", 2, 99, "oversize"),
    "bad": ("b", 3, 10, "poison"),
}
ARRIVALS = [("a1", "a", 1, 10), ("b1", "b", 1, 10), ("a2", "a", 2, 10), ("bad", "b", 3, 10)]
EFFECTS = [("a1", "a", 1), ("b1", "b", 1), ("a2", "a", 2)]
DEAD = {"big": ("b", 2, 99)}
BURIED = {"bad": ("b", 3, 10)}
TAKEN = [Taken("main", LANE, 1, "anna", None, None, 99.0)]
SETTLED = [SettledRow(event_id, "anna", "relay-1", 101.0) for event_id in ("a1", "b1", "a2", "bad")]
TOLD = [
    {"at": 99.0, "process": "relay-1", "what": "taken", "owner": "anna", "lanes": [LANE]},
    {"at": 99.0, "process": "relay-2", "what": "taken", "owner": "ben", "lanes": []},
    {"at": 100.0, "what": "ok", "ids": ["a1", "a2"]},
    {"at": 100.0, "what": "ok", "ids": ["b1", "big", "bad"]},
    {"at": 100.0, "what": "fail", "ids": ["ghost"]},
    {"at": 102.0, "process": "relay-1", "what": "delivered", "ids": ["a1", "b1", "a2", "bad"]},
    {"at": 102.0, "process": "consumer-1", "what": "ack", "id": "a1"},
    {"at": 102.0, "process": "consumer-1", "what": "ack", "id": "bad"},
]


def found(*more, **changes):
    well = {
        "committed": COMMITTED, "arrivals": ARRIVALS, "effects": EFFECTS, "dead": DEAD,
        "buried": BURIED, "leases": TAKEN, "settled": SETTLED, "histories": [*TOLD, *more],
        "by_handlers": False,
    }  # fmt: skip
    return check(Evidence(**{**well, **changes}))


def taken(token, owner, before, left, at=100.5):
    return Taken("main", LANE, token, owner, before, left, at)


def test_all_is_well():
    assert found() == []


def test_a_violation_comes_with_the_story_of_its_event():
    event_id = "0f3a5c1e-0000-4000-8000-000000000001"
    told = [
        {"at": 10.0, "process": "nemesis", "what": "fault", "kind": "long ago"},
        {"at": 100.0, "what": "ok", "ids": [event_id, "other"]},
        {"at": 100.4, "process": "nemesis", "what": "fault", "kind": "kill relay"},
        {"at": 100.7, "what": "ok", "ids": ["other"]},
        {"at": 101.0, "what": "delivered", "process": "relay-1", "ids": [event_id]},
    ]
    evidence = Evidence(
        {event_id: ("a", 1, 10, "")}, [], [], {}, {}, [taken(2, "ben", "anna", 0.5)],
        [SettledRow(event_id, "ben", "relay-2", 100.8)], told, True,
    )  # fmt: skip
    first, *story = excerpt(evidence, [f"T1 lost: 1 ({event_id}) of 1"])
    assert first == f"The story of {event_id}:"
    whats = [(line["what"], line.get("kind")) for line in map(json.loads, story)]
    assert whats == [
        ("ok", None), ("fault", "kill relay"), ("lane", None), ("became done", None),
        ("delivered", None),
    ]  # fmt: skip
    assert excerpt(evidence, ["T9 stuck"]) == []


def test_all_is_well_without_a_broker():
    dead, told = {**DEAD, **BURIED}, [line for line in TOLD if line["what"] != "ack"]
    assert found(arrivals=[], by_handlers=True, dead=dead, buried={}, histories=told) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"arrivals": ARRIVALS[1:]}, "T1 lost: 1 (a1)"),
        ({"arrivals": [*ARRIVALS, ("ghost", "a", 3, 1)]}, "T2 phantom: 1 (ghost)"),
        ({"arrivals": [("a1", "a", 1, 9), *ARRIVALS[1:]]}, "T2 arrived changed: 1 (a1)"),
        ({"effects": [*EFFECTS, ("ghost", "a", 3)]}, "T2 phantom: 1 (ghost)"),
        ({"arrivals": ARRIVALS[::-1]}, "T3 order: key a: 1 first arrived after 2"),
        ({"effects": EFFECTS[::-1]}, "T3 order: key a: 1 first took effect after 2"),
        ({"strict": ("b",)}, "T3 gap: key b: 3 first arrived after 1"),
        ({"strict": ("a",), "effects": EFFECTS[1:]}, "T3 gap: key a: 2 first took effect after 0"),
        ({"arrivals": [*ARRIVALS, ARRIVALS[0]]}, "T4 unexplained copies: 1 (a1)"),
        ({"leases": [*TAKEN, taken(2, "ben", "anna", 0.5)]}, "taken 0.500 s before its lease"),
        ({"leases": [taken(2, "ben", None, None), *TAKEN]}, f"T5 lane main/{LANE}: token 1 after"),
        ({"effects": [*EFFECTS, EFFECTS[0]]}, "T7 took effect more than once: 1 (a1)"),
        ({"effects": EFFECTS[:-1]}, "T7 never took effect: 1 (a2)"),
        (
            {"committed": {**COMMITTED, "a2": ("a", 2, 10, "shaky")}, "effects": EFFECTS[:-1]},
            "T7 never took effect: 1 (a2)",
        ),
        ({"effects": EFFECTS[1:]}, "T7 acknowledged without an effect: 1 (a1)"),
        ({"dead": {}}, "T8 poison that is not dead in the outbox: 1 (big)"),
        ({"buried": {}}, "T8 poison that is not dead in the inbox: 1 (bad)"),
        ({"dead": {**DEAD, "a2": ("a", 2, 10)}}, "T8 buried in the outbox although they were"),
        ({"dead": {"big": ("b", 2, 98)}}, "T8 dead letters in the outbox that are not whole"),
    ],
)
def test_each_broken_promise_is_told(changes, told):
    assert any(told in line for line in found(**changes)), found(**changes)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"what": "ok", "ids": ["c1"]}, "T0 confirmed but not there"),
        ({"what": "fail", "ids": ["a1"]}, "T0 rolled back but there"),
        ({"what": "unknown", "ids": ["a1", "c1"]}, "T0 transactions that are there in part: 1"),
        ({"what": "violation", "text": "T9 stuck"}, "T9 stuck"),
        (
            {"what": "delivered", "process": "relay-2", "ids": ["a1"]},
            "T6 relay-2 says it settled what it did not: 1 (a1)",
        ),
    ],
)
def test_each_word_that_does_not_fit_is_told(line, told):
    lines = found({"at": 103.0, **line})
    assert any(told in one for one in lines), lines


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            SettledRow("a1", "ben", "relay-1", 101.0),
            "settled by relay-1, which did not own its lane",
        ),
        (SettledRow("a1", None, "relay-1", 101.0), "settled while its lane had no owner"),
        (SettledRow("a2", "anna", "relay-1", 101.5), "T6 became done twice: 1 (a2)"),
    ],
)
def test_a_settle_without_the_lane_is_told(row, told):
    lines = found(settled=[row, *SETTLED[1:]])
    assert any(told in one for one in lines), lines


TWICE = [*ARRIVALS, ARRIVALS[0]]


def test_a_copy_may_have_its_reasons():
    torn = [*TAKEN, taken(2, "ben", "anna", -0.1)]  # from one who was gone
    assert found(arrivals=TWICE, leases=torn) == []
    unknown = {"at": 100.5, "process": "relay-1", "what": "attempt", "id": "a2", "verdict": "?"}
    assert found(unknown, arrivals=TWICE) == []


def test_what_happened_at_another_time_or_key_explains_no_copy():
    long_ago = [taken(2, "ben", "anna", -0.1, at=50.0)]
    assert found(arrivals=TWICE, leases=long_ago) != []
    other = {"at": 100.5, "process": "relay-1", "what": "attempt", "id": "b1", "verdict": "?"}
    assert found(other, arrivals=TWICE) != []


def test_a_lane_that_its_owner_has_lost_explains_a_copy_of_its_events_at_that_time():
    lost = {"at": 100.5, "process": "relay-1", "what": "lost", "owner": "anna", "lanes": [LANE]}
    assert found(lost, arrivals=TWICE) == []
    assert found({**lost, "lanes": [(LANE + 1) % 64]}, arrivals=TWICE) != []
    assert found({**lost, "at": 200.0}, arrivals=TWICE) != []


def test_a_lane_that_was_given_back_explains_no_copy():
    handed_over = [*TAKEN, taken(2, None, "anna", 1.0), taken(3, "ben", None, None)]
    assert found(arrivals=TWICE, leases=handed_over) != []


def test_a_lease_that_lapsed_explains_a_copy_also_if_its_owner_takes_the_lane_again():
    arrivals = [*ARRIVALS, ("a1", "a", 1, 10)]
    again = [*TAKEN, taken(2, "anna", "anna", -0.6)]
    assert found(arrivals=arrivals, leases=again) == []
    early = [*TAKEN, taken(2, "anna", "anna", 0.6)]
    assert found(arrivals=arrivals, leases=early) == ["T4 unexplained copies: 1 (a1)"]


def test_neither_a_clear_refusal_nor_a_new_token_for_the_same_owner_explains_a_copy():
    again = [*TAKEN, taken(2, "anna", "anna", 1.0)]
    assert found(arrivals=TWICE, leases=again) != []
    refused = {"at": 100.5, "process": "relay-1", "what": "attempt", "id": "a2"}
    assert found({**refused, "verdict": "rejected"}, arrivals=TWICE) != []
    assert found({**refused, "verdict": "outage"}, arrivals=TWICE) == []


def test_a_padding_that_is_not_its_own_is_no_padding():
    assert size_of("a1", padding_of("a1", 1_000)) == 1_000
    assert size_of("a1", padding_of("a1", 1_000)[:-1]) == 999
    assert size_of("a1", padding_of("a2", 1_000)) == -1


def test_a_torn_line_of_a_history_is_passed_over(tmp_path):
    History(tmp_path / "one.jsonl", "one").note("ok", ids=["a"])
    with (tmp_path / "one.jsonl").open("a") as file:
        file.write('{"at": 1, "wh')
    (line,) = read(tmp_path)
    assert (line["process"], line["what"], line["ids"]) == ("one", "ok", ["a"])


def test_a_plan_follows_from_its_seed():
    choices = faults.kinds("postgresql", "rabbitmq", wires=["store", "broker"], disk=True)
    assert faults.plan(7, 50, choices) == faults.plan(7, 50, choices)
    assert faults.plan(7, 50, choices) != faults.plan(8, 50, choices)
    assert {fault.kind for fault in faults.plan(7, 100, choices)} == set(choices)


def test_every_fault_has_a_victim():
    every = {
        kind
        for store in ("sqlite", "postgresql", "mysql", "mongodb")
        for broker in ("handlers", "kafka", "rabbitmq")
        for kind in faults.kinds(store, broker, wires=["store", "broker"], disk=True)
    }
    assert every == {kind for kinds in faults.VICTIMS.values() for kind in kinds}


def test_no_clock_is_set_wrong_where_the_host_is_the_clock():
    assert "relay with a wrong clock" not in faults.kinds("sqlite", "handlers")


@pytest.mark.parametrize("culprits", [{3}, {3, 17}, {0, 1, 19}])
def test_the_culprits_are_found(culprits):
    asked = []

    def breaks(numbers):
        asked.append(numbers)
        return culprits <= set(numbers)

    assert shrink(range(20), breaks) == sorted(culprits)
    assert len(asked) < 60


def test_what_cannot_be_shortened_stays():
    rng = random.Random(1)
    few = sorted(rng.sample(range(100), 5))
    assert shrink(few, lambda numbers: numbers == few) == few


# -- what others send and write -------------------------------------------------------------------
FOREIGN = {
    1: Foreign(1, "done", "k", 1),
    2: Foreign(2, "dead", "", 1),
    3: Foreign(3, "done", "k", 2),
    4: Foreign(4, "any", "", 1),
    5: Foreign(5, "maybe", "", 1),
}


def foreign(met=(1, 3, 4), dead=(2,)):
    return found(foreign=FOREIGN, met=list(met), foreign_dead=list(dead))


def test_foreign_messages_that_ended_as_they_should():
    assert foreign() == []
    assert foreign(met=(1, 3, 5), dead=(2, 4)) == []
    assert foreign(met=(1, 3, 4), dead=(2, 5)) == []


@pytest.mark.parametrize(
    ("met", "dead", "told"),
    [
        ((1, 3, 4, 1), (2,), "took effect more than once: 1 (1)"),
        ((1, 4), (2,), "neither effect nor dead letter: 1 (3)"),
        ((1, 3, 4), (), "neither effect nor dead letter: 1 (2)"),
        ((1, 3, 4), (2, 2), "more than one end: 1 (2)"),
        ((1, 3, 4), (2, 4), "more than one end: 1 (4)"),
        ((1, 3, 4, 5), (2, 5), "more than one end: 1 (5)"),
        ((1, 2, 3, 4), (), "should be dead: 1 (2)"),
        ((1, 4), (2, 3), "should be done: 1 (3)"),
        ((1, 3, 4, 9), (2,), "seen, but never sent: 1 (9)"),
        ((1, 3, 4), (2, -1), "seen, but never sent: 1 (-1)"),
    ],
)
def test_foreign_messages_that_ended_otherwise(met, dead, told):
    assert foreign(met, dead) == [f"T12 foreign: {told}"]


def test_a_foreign_row_may_take_effect_after_a_replay_once():
    replaying = {"at": 103.0, "what": "replaying", "operation": "3f"}
    known = {2: Foreign(2, "dead", "", 1)}
    assert found(foreign=known, met=[2]) == ["T12 foreign: should be dead: 1 (2)"]
    assert found(replaying, foreign=known, met=[2]) == []
    assert found(replaying, foreign=known, met=[2, 2]) != []
    assert found(replaying, foreign=known, met=[2], foreign_dead=[2]) != []


def test_foreign_messages_of_a_key_out_of_order():
    assert foreign(met=(3, 1, 4)) == ["T12 order: foreign key k: 1 took effect after 3"]


@pytest.mark.parametrize("part", ["a~f7~b", b"\xff~f7~", '{"mark":"~f7~"}'])
def test_a_mark_is_found_in_whatever_is_left(part):
    assert mark_in("nothing", part) == 7
    assert not is_marked("nothing", b"~f~")


@pytest.mark.parametrize("scheme", ["sqlite", "postgresql", "mysql", "mongodb"])
def test_mischief_that_ends_a_transaction_ends_as_the_contract_says(scheme):
    guilty = guilty_of(scheme)
    assert {"poison", "oversize", "panic", "roll_back", "close", "hang"} <= set(guilty)
    assert ("commit" in guilty) == (scheme == "mongodb")
    assert ("swallow" in guilty) == (scheme in ("postgresql", "mongodb"))
    assert "own_thread" not in guilty


def test_mischief_that_takes_effect_is_a_violation_where_it_must_not():
    committed = {**COMMITTED, "m": ("b", 4, 10, "panic")}
    guilty = ("oversize", "poison", "panic")
    arrivals = [*ARRIVALS, ("m", "b", 4, 10)]
    well = {"committed": committed, "arrivals": arrivals, "guilty": guilty}
    assert found(buried={**BURIED, "m": ("b", 4, 10)}, **well) == []
    assert found(effects=[*EFFECTS, ("m", "b", 4)], **well) == [
        "T7 took effect although its handler misbehaved or gave up: 1 (m)",
        "T8 poison that is not dead in the inbox: 1 (m)",
    ]


@pytest.mark.parametrize(
    ("more", "changes", "told"),
    [
        ((), {"cancelled": ["b1"]}, "T14 cancelled, but sent: 1 (b1)"),
        ((), {"nowhere": ["new"]}, "T14 edited, but nowhere: 1 (new)"),
        ((), {"undone": ["3f is stopped: no"]}, "T14 operation 3f is stopped: no"),
        (
            (
                {"at": 103.0, "what": "edited", "id": "big", "new": "new"},
                {"at": 104.0, "what": "attempt", "id": "big", "verdict": "rejected"},
            ),
            {},
            "T14 dead letters that were edited, and tried again: 1 (big)",
        ),
    ],
)
def test_operators_who_are_not_obeyed_are_told(more, changes, told):
    assert told in found(*more, **changes)


def test_a_cancelled_event_is_not_lost():
    committed = {**COMMITTED, "late": ("c", 1, 10, "delayed")}
    assert "T1 lost: 1 (late) of 6" in found(committed=committed)
    assert found(committed=committed, cancelled=["late"]) == []


@pytest.mark.parametrize(
    ("place", "began", "is_broken"),
    [
        (("stream", "main"), 101.0, True),
        (("topic", "t"), 101.0, True),
        (("topic", "other"), 101.0, False),
        (("stream", "main"), 99.0, False),  # it was in flight
    ],
)
def test_a_relay_that_sends_during_a_pause_that_it_knows(place, began, is_broken, monkeypatch):
    """T13."""
    record = SimpleNamespace(id="e", topic="t")
    watch, now = operators.PauseWatch(), [100.0]
    monkeypatch.setattr(operators, "monotonic", lambda: now[0])
    watch.changed(SimpleNamespace(kind=place[0], name=place[1], paused=True))
    now[0] = 102.0
    assert (watch.broken("main", [record], 102.0 - began) is not None) == is_broken
    watch.changed(SimpleNamespace(kind=place[0], name=place[1], paused=False))
    assert watch.broken("main", [record], 0.1) is None
