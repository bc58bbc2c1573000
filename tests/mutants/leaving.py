"""Bugs in how a relay stops: its last heartbeat, the release of its lanes, swallowed cancels."""

from contextlib import suppress

from tests.mutants.mutant import Mutant

LEAVES = "tests/unit/test_relay_leaves.py::"
LOCKED = "tests/scenario/test_locked_lane.py::"
SOON = f"{LOCKED}test_who_leaves_waits_for_a_lane_that_is_soon_unlocked"


async def _not_again(release):
    """What was locked at the first attempt stays with the relay."""


def _locked_lanes_are_left_mysql():
    from postroom.stores.mysql import leases

    leases.until_released = _not_again


def _locked_lanes_are_left_postgres():
    from postroom.stores.postgres import leases

    leases.until_released = _not_again


def _locked_lanes_hold_up_the_others():
    from postroom.stores.mongo import leases

    leases._PATIENCE_MS = 90_000


def _heartbeat_is_cancelled():
    from postroom.engine.relay.heartbeat import Heartbeat

    async def finish(self):
        pass

    Heartbeat.finish = finish


def _heartbeat_is_waited_for():
    from postroom.engine.relay import relay

    relay._LAST_BEAT_SECONDS = None


def _released_once():
    from postroom.engine.relay import relay

    relay._LEAVE_TRIES = 1


def _silent_leave():
    from postroom.engine.relay import relay

    async def leave(context):
        with suppress(relay.StoreError):
            await context.store.leave(context.stream, context.owner)

    relay._leave = leave


def _swallowed_cancel():
    from postroom.engine import service
    from postroom.engine.relay import stager, worker

    service.is_cancelled = stager.is_cancelled = worker.is_cancelled = lambda: False


def _swallowed_cancel_mysql():
    from postroom.stores.mysql import session

    session._cancels = lambda: 0


LEAVING_MUTANTS = {
    "leave-skips-locked-lanes-mysql": Mutant(
        "L4", "who leaves keeps the lanes that are locked at that moment, in MySQL",
        _locked_lanes_are_left_mysql, tests=(f"{SOON}[mysql]",),
    ),
    "leave-skips-locked-lanes-postgres": Mutant(
        "L4", "who leaves keeps the lanes that are locked at that moment, in PostgreSQL",
        _locked_lanes_are_left_postgres, tests=(f"{SOON}[postgres-update]",),
    ),
    "leave-waits-for-a-locked-lane-mongo": Mutant(
        "L4", "who leaves keeps all lanes behind a locked one, in MongoDB",
        _locked_lanes_hold_up_the_others, tests=(f"{SOON}[mongo]",),
    ),
    "stop-cancels-the-heartbeat": Mutant(
        "L4", "a stop cancels a heartbeat that the server still executes",
        _heartbeat_is_cancelled,
        tests=(f"{LEAVES}test_a_heartbeat_under_way_ends_before_the_lanes_are_released",),
    ),
    "stop-waits-for-the-heartbeat": Mutant(
        "L4", "a stop waits for a heartbeat that hangs", _heartbeat_is_waited_for,
        tests=(f"{LEAVES}test_a_heartbeat_that_hangs_does_not_hold_up_the_stop",),
    ),
    "leave-once": Mutant(
        "L4", "a release that meets a deadlock is not repeated", _released_once,
        tests=(f"{LEAVES}test_a_release_that_meets_a_deadlock_is_repeated",),
    ),
    "leave-in-silence": Mutant(
        "L4", "a release that fails is not reported", _silent_leave,
        tests=(f"{LEAVES}test_a_release_that_fails_is_reported_with_what_it_means",),
    ),
    "swallowed-cancel": Mutant(
        "F2", "a service goes on after its driver swallowed the cancel", _swallowed_cancel,
        tests=(f"{LEAVES}test_a_service_ends_although_its_driver_swallowed_the_cancel",),
    ),
    "swallowed-cancel-mysql": Mutant(
        "F2", "a connection is opened after its driver swallowed the cancel, in MySQL",
        _swallowed_cancel_mysql, tests=("tests/scenario/test_mysql_cancel.py",),
    ),
}  # fmt: skip
