"""Bugs in loops that fail: pauses, rounds of suspects, and who notices a lane with a deep backlog."""

from tests.mutants.mutant import Mutant

PAUSED = "tests/unit/test_paused.py"
LIMITS = "tests/unit/test_limits.py"
ENDLESS = "tests/unit/test_endless_failures.py"
LISTENING = "tests/unit/test_postgres_listening.py"
ALLOTMENT = "tests/unit/test_lane_groups.py::"


def _pauses_do_not_grow():
    from postroom.model.pauses import Pauses

    Pauses.grow = lambda self: self._first


def _every_listen_is_a_success():
    from postroom.stores.postgres import listener

    listener._STEADY_SECONDS = 0.0


def _only_the_drivers_errors():
    """The old way: another error ends the listener."""
    import psycopg

    from postroom.stores.postgres.listener import Listener

    attempt = Listener._attempt

    async def attempting(self):
        try:
            await attempt(self)
        except (psycopg.Error, OSError):
            raise
        except Exception as error:
            raise SystemError from error

    async def run(self):
        try:
            await self._attempt()
        finally:
            self._tried.set()

    Listener._attempt, Listener._run = attempting, run


def _sampler_knows_one_error():
    from postroom.errors import PostroomError
    from postroom.telemetry.sampler import Sampler

    failed = Sampler._failed

    def only(self, stream, error):
        if not isinstance(error, (PostroomError, TimeoutError)):
            raise error
        failed(self, stream, error)

    Sampler._failed = only


def _oldest_suspect_first():
    from heapq import heappush

    from postroom.engine.relay.suspects import Suspects

    def add(self, record):
        heappush(self._round, (record.seq, next(self._turn), record))
        self._filled.set()

    Suspects.add = add


def _walks_all_the_time():
    from postroom.engine.relay import lane_groups

    learn = lane_groups.Depths.learn

    def learning(self, *arguments, **facts):
        before = self._look_at
        learn(self, *arguments, **facts)
        if self._is_apart:
            self._look_at = before

    lane_groups.Depths.learn = learning


def _trouble_every_ten_seconds():
    from postroom.engine import log_limits

    log_limits._FACTOR = 1


def _trouble_without_an_end():
    from postroom.engine.store_calls import StoreCalls

    StoreCalls.succeeded = lambda self, stream, doing: None


def _new_group_reads_at_once():
    from postroom.sources.kafka.starts import Starts

    Starts.__contains__ = lambda self, place: False


def _pauses_are_not_obeyed():
    from postroom.engine.relay.paused import Paused

    Paused.apply = lambda self, controls: []


def _suspects_do_not_expire():
    """An event of unknown outcome was sent again after its time, and a handler began after it."""
    from postroom.engine.relay.worker import Worker

    def asked(method):
        async def without(self, record):
            is_over, self.flight.is_over = self.flight.is_over, lambda record: False
            try:
                return await method(self, record)
            finally:
                self.flight.is_over = is_over

        return without

    Worker.begin, Worker.publish_alone = asked(Worker.begin), asked(Worker.publish_alone)


def _a_held_event_has_failed():
    from postroom.engine.relay.paused import Paused

    hold = Paused.hold

    def failed(self, record):
        return hold(self, record)._replace(error="paused", held=False)

    Paused.hold = failed


def _a_held_event_spends_an_attempt():
    from postroom.engine.relay.paused import Paused

    hold = Paused.hold

    def charged(self, record):
        return hold(self, record)._replace(attempts=record.attempts + 1)

    Paused.hold = charged


def _followers_of_a_held_event_go_on():
    from postroom.engine.relay.in_flight import InFlight

    def only_this_one(self, record, run):
        self._failed.append(self._paused.hold(record)._replace(record=record._replace(key=None)))
        self._closing.append((record.key_hash, run))

    InFlight._hold = only_this_one


def _held_events_wait_for_their_time():
    from postroom.engine.relay.held_events import HeldEvents

    async def nothing(self, topic):
        pass

    HeldEvents.free = nothing


def _limits_are_not_obeyed():
    from postroom.engine.relay.limits import Limits

    Limits.apply = lambda self, controls: ([], set())


def _whole_limit_for_each_relay():
    from postroom.engine.relay.context import RelayContext

    RelayContext._share = lambda self: 1.0


def _every_other_event_ignores_its_limit():
    from postroom.engine.relay.limits import Limits

    admit = Limits.admit

    def forgetful(self, record, *, alone=False):
        seconds = admit(self, record, alone=alone)
        return seconds if seconds is None or record.seq % 2 else None

    Limits.admit = forgetful


def _limited_keys_are_read_again():
    from postroom.engine.relay.limits import Limits

    admit = Limits.admit

    def left(self, record, *, alone=False):
        return None if admit(self, record, alone=alone) is None else 0.0

    Limits.admit = left


def _limited_suspects_join_a_batch():
    from postroom.engine.relay.in_flight import InFlight

    withdraw = InFlight.withdraw
    InFlight.withdraw = lambda self, record, *, limited=False: withdraw(self, record)


def _suspects_ignore_limits():
    from postroom.engine.relay.limits import Limits

    admit = Limits.admit

    def lenient(self, record, *, alone=False):
        return None if alone else admit(self, record)

    Limits.admit = lenient


PAUSES_MUTANTS = {
    "limits-ignored": Mutant(  # by the simulation alone
        "B6", "a relay ignores limits", _limits_are_not_obeyed, sim=("limits", "join")
    ),
    "limits-not-shared": Mutant(
        "B6", "each relay takes the whole limit", _whole_limit_for_each_relay,
        tests=(f"{LIMITS}::test_two_relays_share_a_limit_by_their_lanes",),
    ),
    "limits-let-some-through": Mutant(
        "B6", "every other event ignores the limit of its topic",
        _every_other_event_ignores_its_limit,
        tests=(f"{LIMITS}::test_a_limited_topic_does_not_starve_its_neighbours",),
    ),
    "limited-keys-are-read-again": Mutant(
        "F2", "events that wait for a limit are read over and over", _limited_keys_are_read_again,
        tests=(f"{LIMITS}::test_waiting_for_a_limit_costs_few_statements",),
    ),
    "limited-suspects-join-a-batch": Mutant(
        "P3", "a suspect that waited for a limit is sent with others",
        _limited_suspects_join_a_batch,
        tests=(f"{LIMITS}::test_events_of_unknown_outcome_are_tried_alone_within_the_limit",),
    ),
    "suspects-ignore-limits": Mutant(
        "P3", "suspects are sent faster than the limit", _suspects_ignore_limits,
        tests=(f"{LIMITS}::test_events_of_unknown_outcome_are_tried_alone_within_the_limit",),
    ),
    "new-group-reads-at-once": Mutant(
        "G2", "a new group reads before its start is committed", _new_group_reads_at_once,
        tests=("tests/unit/test_kafka_starts.py",),
    ),
    "trouble-every-ten-seconds": Mutant(
        "F2", "a store error that lasts is logged every ten seconds", _trouble_every_ten_seconds,
        tests=("tests/unit/test_log_observer.py",),
    ),
    "trouble-without-an-end": Mutant(
        "F2", "nothing tells that a call to the store works again", _trouble_without_an_end,
        tests=(ENDLESS,),
    ),
    "pauses-do-not-grow": Mutant(
        "F2", "a loop that fails pauses as briefly each time", _pauses_do_not_grow, tests=(ENDLESS,)
    ),
    "listen-is-a-success": Mutant(
        "F2", "a connection that is lost right after LISTEN begins with short pauses again",
        _every_listen_is_a_success, tests=(LISTENING,),
    ),
    "listener-ends": Mutant(
        "F2", "an error that is not the driver's ends the listener", _only_the_drivers_errors,
        tests=(LISTENING,),
    ),
    "sampler-ends": Mutant(
        "F2", "an error that is not postroom's ends the sampler", _sampler_knows_one_error,
        tests=("tests/unit/test_metrics.py",),
    ),
    "suspects-without-rounds": Mutant(
        "P3", "a suspect that hangs is tried again before all others", _oldest_suspect_first,
        tests=("tests/unit/test_suspects.py",),
    ),
    "deep-lane-walked-all-the-time": Mutant(
        "P1", "the worker apart walks past a busy key without a rest", _walks_all_the_time,
        tests=(f"{ALLOTMENT}test_the_worker_apart_walks_past_a_busy_key_for_a_tenth_of_the_time",),
    ),
    "pauses-not-obeyed": Mutant(
        "B6", "a relay sends during a pause", _pauses_are_not_obeyed, tests=(PAUSED,)
    ),
    "pauses-ignored": Mutant(  # by the simulation alone
        "B6", "a relay ignores pauses", _pauses_are_not_obeyed, sim=("controls", "crash", "join")
    ),
    "pauses-count-as-failures": Mutant(
        "B6", "an event of a paused topic counts as failed", _a_held_event_has_failed,
        tests=(f"{PAUSED}::test_a_pause_is_not_a_failure",),
    ),
    "expired-suspects-are-sent": Mutant(
        "P3", "an event of unknown outcome is sent after its time", _suspects_do_not_expire,
        tests=("tests/unit/test_expired_turns.py",),
    ),
    "pauses-spend-attempts": Mutant(
        "B6", "an event of a paused topic spends an attempt", _a_held_event_spends_an_attempt,
        tests=(PAUSED,),
    ),
    "pauses-overtaken": Mutant(
        "B5", "followers overtake an event of a paused topic", _followers_of_a_held_event_go_on,
        tests=(PAUSED,),
    ),
    "pauses-end-late": Mutant(
        "B6", "a resumed topic's events wait for their time", _held_events_wait_for_their_time,
        tests=(PAUSED,),
    ),
}  # fmt: skip
