"""Bugs in leases and in settles that the store does not take."""

from tests.mutants import mysql, postgres
from tests.mutants.mutant import Mutant

DOUBT = "tests/unit/test_in_flight_doubt.py::"
CLOCK = "tests/contract/test_store_memory.py"
SET_BACK = "tests/scenario/test_server_clock.py::test_set_back_by_an_hour"
MEMBER = "tests/scenario/test_locked_lane.py::test_a_locked_member_costs_no_lane"
LANES = "tests/unit/test_lanes.py"
SQLITE = "tests/contract/test_store_sqlite.py::TestSqliteStore::"
MONGO = "tests/contract/test_store_mongo.py::TestReplicaSetOfOne::"
DRAIN = "tests/unit/test_drain.py::"
_REFUSED = "tests/scenario/test_refused_settle.py"
REFUSED = f"{_REFUSED}::test_it_becomes_a_dead_letter_and_its_neighbours_are_done[sqlite]"
STRICT = f"{_REFUSED}::test_a_strict_event_is_not_given_up_for_it[sqlite]"


def _no_horizon():
    from postroom.stores.memory import store

    store._is_live = lambda row, now: now < row.until_us


def _no_horizon_postgres():
    postgres._rewrite("OR until > clock_timestamp() + 2 * length", "")


def _no_horizon_mysql():
    far = "OR until > UTC_TIMESTAMP(6) + INTERVAL 2 * length + 10000000 MICROSECOND"
    mysql._rewrite("take_free", far, "")


def _no_horizon_mongo():
    from postroom.stores.mongo import leases

    leases._LIVE["$and"].pop()


def _waits_for_the_gone():
    mysql._rewrite("beat_gone", " SKIP LOCKED", "")


def _waits_for_members():
    from postroom.stores.mongo import leases

    leases._patience_ms = lambda lease_seconds: 60_000


def _one_deadline_for_all():
    from postroom.engine.relay.lanes import LaneKeeper

    consider = LaneKeeper.consider

    def careless(self, membership, asked_at, **more):
        return consider(self, membership._replace(renewed=frozenset(range(64))), asked_at, **more)

    LaneKeeper.consider = careless


def _lease_from_the_answer():
    from postroom.engine.relay.heartbeat import Heartbeat
    from postroom.engine.relay.lanes import LaneKeeper

    consider, make = LaneKeeper.consider, Heartbeat.__init__

    def with_a_clock(self, context):
        make(self, context)
        context.keeper.clock = context.clock

    def careless(self, membership, asked_at, **more):
        return consider(self, membership, self.clock.monotonic(), **more)

    Heartbeat.__init__, LaneKeeper.consider = with_a_clock, careless


def _confirmed_behind_a_failure():
    from postroom.engine.relay.in_flight import InFlight

    confirm = InFlight.confirm

    def careless(self, records):
        for record in records:
            run = self._runs.get(record.key_hash)
            if run is not None and run.failed:
                self._done.append(record)
        confirm(self, records)

    InFlight.confirm = careless


def _refused_is_a_conflict():
    """The same settle again and again, as if the next attempt could be taken."""
    from postroom.engine.relay import settler

    settler.StoreRefusedError = type("Never", (Exception,), {})


def _strict_is_buried():
    from postroom.engine.relay.settler import Settler

    bury = Settler._bury

    async def careless(self, single, record, error):
        return await bury(self, single, record._replace(kseq=None), error)

    Settler._bury = careless


def _refused_without_a_pause():
    from postroom.engine.relay import settler

    wait_for = settler.wait_for

    async def impatient(event, seconds):
        return await wait_for(event, 0.05)

    settler.wait_for = impatient


def _replay_takes_lanes():
    import json

    from postroom.stores.sqlite import commands

    choose = commands._choose

    def careless(db, ids, *, over, now):
        chosen = choose(db, ids, over=over, now=now)
        db.run("fence_lanes", seqs=json.dumps([event.seq for event in chosen]))
        return chosen

    commands._choose = careless


def _replay_takes_lanes_mongo():
    from postroom.stores.mongo import commands

    commands.tell_replayed = commands.depose


def _replay_untold():
    from postroom.stores.sqlite.statements import load_queries

    queries = load_queries("postroom_")
    assert "replayed_at = :now" in queries["replayed"]
    queries["replayed"] = queries["replayed"].replace("= :now", "= 0 * :now")


def _drain_without_patience():
    from postroom.engine.relay.heartbeat import Patience

    async def once(self, question):
        return await question()

    Patience.ask = once


def _drain_without_growing_pauses():
    from postroom.engine.relay.heartbeat import Patience
    from postroom.model.pauses import Pauses

    Patience._pauses = property(lambda self: Pauses(0.01, 0.01), lambda self, pauses: None)


def _drain_without_its_lanes():
    from postroom.engine.relay.heartbeat import Heartbeat

    Heartbeat.settled_in = property(lambda self: self._losses >= 0)


def _first_lane_first():
    """The old way: one lane after the other, each as far as the limit goes."""
    from postroom.store import Staged
    from postroom.stores.sqlite import stage as module

    def stage(db, stream, lanes, limit):
        moved = 0
        with db.change() as now:
            for lane in sorted(lanes):
                most = limit - moved
                moved += db.run("stage", stream=stream, lane=lane, now=now, most=most).rowcount
        return Staged(moved, None, bool(moved))

    module.stage = stage


def _nothing_apart():
    from postroom.engine.relay.lane_groups import Depths

    Depths._leave = lambda self, lanes, now, took: None


def _begun_in_a_lost_lane():
    from postroom.engine.relay.in_flight import InFlight

    settled = InFlight.settled

    def careless(self, pending, lanes, may_start):
        fenced = settled(self, pending, lanes, may_start)
        self._begun.update(record.id for record, _ in pending.starts)
        return fenced

    InFlight.settled = careless


LEASES_MUTANTS = {
    "begun-in-a-lost-lane": Mutant(
        "H1", "a start whose lane was lost meanwhile counts as begun", _begun_in_a_lost_lane,
        tests=(f"{DOUBT}test_a_lane_that_is_lost_while_a_start_is_counted_leaves_nothing_begun",),
    ),
    "replay-takes-lanes": Mutant(
        "L7", "a replay takes the lanes from their owners, in SQLite", _replay_takes_lanes,
        tests=(f"{SQLITE}test_a_replay_leaves_the_lanes_to_their_owners",),
    ),
    "replay-takes-lanes-mongo": Mutant(
        "L7", "a replay takes the lanes from their owners, in MongoDB", _replay_takes_lanes_mongo,
        tests=(f"{MONGO}test_a_replay_leaves_the_lanes_to_their_owners",),
    ),
    "replay-untold": Mutant(
        "L5", "a lease does not say that an event of its lane was replayed", _replay_untold,
        tests=(f"{SQLITE}test_a_settle_in_doubt_does_not_undo_a_replay",),
    ),
    "drain-without-patience": Mutant(
        "L5", "a drain ends by the first error of the store", _drain_without_patience,
        tests=(f"{DRAIN}test_a_drain_goes_on_when_its_look_fails",),
    ),
    "drain-without-its-lanes": Mutant(
        "L5", "a drain ends although free lanes could not be taken, or some were lost",
        _drain_without_its_lanes,
        tests=(
            f"{DRAIN}test_a_drain_waits_for_free_lanes_that_are_locked_for_a_moment",
            f"{DRAIN}test_a_drain_takes_lanes_again_that_it_lost",
        ),
    ),
    "drain-without-growing-pauses": Mutant(
        "F2", "a drain asks a store that fails a hundred times a second",
        _drain_without_growing_pauses,
        tests=(f"{DRAIN}test_a_drain_ends_by_the_error_after_a_whole_lease_with_growing_pauses",),
    ),
    "stage-lane-by-lane": Mutant(
        "W7", "due events of one lane use up the limit of a stage, in SQLite", _first_lane_first,
        tests=(f"{SQLITE}test_due_events_of_one_lane_do_not_hold_up_the_others",),
    ),
    "hot-lane-not-apart": Mutant(
        "P1", "slow reads past a hot key hold up the other lanes of their worker", _nothing_apart,
        tests=("tests/unit/test_lane_groups.py",),
    ),
    "refused-settle-without-a-pause": Mutant(
        "F2", "what the store refuses for good is tried again twenty times a second",
        _refused_without_a_pause, tests=("tests/unit/test_settler.py",),
    ),
    "lease-without-horizon": Mutant(
        "L1", "a lease from before the clock was set back is live", _no_horizon, tests=(CLOCK,)
    ),
    "lease-without-horizon-postgres": Mutant(
        "L1", "a lease from before the clock was set back is not free, in PostgreSQL",
        _no_horizon_postgres, tests=(f"{SET_BACK}[postgres]",),
    ),
    "lease-without-horizon-mysql": Mutant(
        "L1", "a lease from before the clock was set back is not free, in MySQL",
        _no_horizon_mysql, tests=(f"{SET_BACK}[mysql]",),
    ),
    "lease-without-horizon-mongo": Mutant(
        "L1", "a lease from before the clock was set back is live, in MongoDB",
        _no_horizon_mongo, tests=(f"{SET_BACK}[mongo]",),
    ),
    "locked-member-mysql": Mutant(
        "L6", "a beat waits for the locked row of a member that is gone, in MySQL",
        _waits_for_the_gone, tests=(f"{MEMBER}[mysql]",),
    ),
    "locked-member-mongo": Mutant(
        "L6", "a beat waits for a locked member, in MongoDB",
        _waits_for_members, tests=(f"{MEMBER}[mongo]",),
    ),
    "one-deadline-for-all": Mutant(
        "L6", "a lane that was not renewed may be sent from as long as the others",
        _one_deadline_for_all, tests=(LANES,),
    ),
    "lease-from-the-answer": Mutant(
        "L1", "a lease counts from when its answer came, not from when it was asked for",
        _lease_from_the_answer, tests=("tests/unit/test_heartbeat.py",),
    ),
    "confirmed-behind-a-failure": Mutant(
        "B5", "what was confirmed behind a failed event of its key is settled as done",
        _confirmed_behind_a_failure, tests=("tests/unit/test_in_flight.py",),
    ),
    "refused-settle-is-repeated": Mutant(
        "G7", "a settle that is refused for its data is repeated for ever",
        _refused_is_a_conflict, tests=(REFUSED,),
    ),
    "strict-event-is-given-up": Mutant(
        "B6", "a strict event whose outcome is refused becomes a dead letter",
        _strict_is_buried, tests=(STRICT,),
    ),
}  # fmt: skip
