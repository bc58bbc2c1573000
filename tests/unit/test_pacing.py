"""How much a read asks for: more with a backlog, fair over the lanes that have work (R4)."""

from __future__ import annotations

import pytest

from postroom.engine.relay.pacing import BatchSize, ReadPacer
from postroom.testing.broker_tools import make_record


def found(**lanes):
    """`l3=10`: ten records of lane 3."""
    return [
        make_record(n, lane=int(name[1:])) for name, count in lanes.items() for n in range(count)
    ]


@pytest.mark.promise("R4")
def test_the_first_lane_rotates_and_all_lanes_are_asked():
    portion, lanes = BatchSize(100, 1_000), list(range(64))
    firsts = []
    for _ in range(64):
        ordered, _ = portion.ask(lanes, 100)
        assert sorted(ordered) == lanes
        firsts.append(ordered[0])
    assert sorted(firsts) == lanes  # each lane is first once in 64 reads


@pytest.mark.promise("R4")
def test_the_order_is_a_ring():
    ordered, _ = BatchSize(100, 1_000).ask([60, 2, 31, 8], 100)
    ring = [2, 8, 31, 60]
    at = ring.index(ordered[0])
    assert ordered == ring[at:] + ring[:at]


@pytest.mark.parametrize("rows", [1, 3, 100, 1_000])
@pytest.mark.parametrize("lanes", [[5], list(range(7)), list(range(64))])
def test_a_lane_brings_at_least_one_row_and_never_more_than_was_asked_for(rows, lanes):
    portion = BatchSize(100, 1_000)
    for _ in range(3):
        _, per_lane = portion.ask(lanes, rows)
        assert 1 <= per_lane <= rows
        portion.learn(found(**{f"l{lane}": 3 for lane in lanes})[:rows], rows, per_lane)


def test_a_lane_alone_may_fill_the_batch():
    _, per_lane = BatchSize(100, 1_000).ask([5], 100)
    assert per_lane == 100


@pytest.mark.req("S4.3", "S4.8")
def test_with_a_backlog_batches_grow_up_to_the_largest():
    portion, sizes = BatchSize(100, 1_000), []
    for _ in range(6):
        _, per_lane = portion.ask([5], portion.rows)
        assert portion.learn(found(l5=portion.rows), portion.rows, per_lane) is True
        sizes.append(portion.rows)
    assert sizes == [200, 400, 800, 1_000, 1_000, 1_000]


@pytest.mark.req("S4.3")
def test_without_one_they_shrink_to_the_smallest():
    portion, sizes = BatchSize(100, 1_000), []
    for _ in range(4):
        portion.learn(found(l5=portion.rows), portion.rows, portion.rows)
    for _ in range(5):
        _, per_lane = portion.ask([5], portion.rows)
        assert portion.learn(found(l5=1), portion.rows, per_lane) is False
        sizes.append(portion.rows)
    assert sizes == [500, 250, 125, 100, 100]


def test_a_batch_that_is_filled_by_half_leaves_the_size_as_it_is():
    portion = BatchSize(100, 1_000)
    portion.learn(found(l5=100), 100, 100)
    assert portion.rows == 200
    assert portion.learn(found(l5=60, l6=60), 200, 200) is False
    assert portion.rows == 200


def test_a_full_read_of_a_smaller_question_does_not_let_it_grow():
    """The breaker let one event through to try, or little room was left."""
    portion = BatchSize(100, 1_000)
    assert portion.learn(found(l5=1), 1, 1) is True
    assert portion.rows == 100


@pytest.mark.promise("R4")
def test_after_a_full_read_the_busy_lanes_share_the_next():
    """A backlog in many lanes: none of them may fill the batch alone any more."""
    portion = BatchSize(640, 640)
    lanes = list(range(64))
    portion.learn(found(**{f"l{lane}": 10 for lane in lanes}), 640, 640)
    _, per_lane = portion.ask(lanes, 640)
    assert 10 <= per_lane <= 64


def test_a_lane_that_was_cut_short_is_worth_another_read():
    portion = BatchSize(100, 1_000)
    assert portion.learn(found(l5=10, l6=3), 100, 10) is True
    assert portion.learn(found(l5=9, l6=3), 100, 10) is False


def test_nothing_found_is_no_reason_to_go_on():
    portion = BatchSize(100, 1_000)
    assert portion.learn([], 100, 100) is False
    assert portion.rows == 100


# -- reads that bring little ---------------------------------------------------------------------
def test_after_a_read_that_brought_little_the_next_one_waits_four_times_as_long_as_it_took():
    restraint = ReadPacer()
    restraint.learn(found=3, rows=100, in_flight=10, took=0.002, now=50.0)
    assert restraint.holds(in_flight=10, now=50.007)
    assert not restraint.holds(in_flight=10, now=50.008)
    assert restraint.until == pytest.approx(50.008)


@pytest.mark.promise("P1")
@pytest.mark.parametrize("in_flight", [5, 1, 0])
def test_it_does_not_wait_when_half_of_what_was_on_its_way_has_come_to_an_end(in_flight):
    restraint = ReadPacer()
    restraint.learn(found=3, rows=100, in_flight=10, took=1.0, now=50.0)
    assert not restraint.holds(in_flight=in_flight, now=50.0)


@pytest.mark.parametrize("found", [25, 100])
def test_a_read_that_brought_enough_is_followed_by_another_at_once(found):
    restraint = ReadPacer()
    assert not restraint.holds(in_flight=1_000, now=0.0)
    restraint.learn(found=0, rows=100, in_flight=10, took=1.0, now=50.0)
    restraint.learn(found=found, rows=100, in_flight=110, took=1.0, now=50.0)
    assert not restraint.holds(in_flight=110, now=50.0)
