"""Bugs in what decides whether an effect happens, and in how a failure is judged."""

from tests.mutants.mutant import Mutant

FASTSTREAM = "tests/scenario/test_consumer_faststream.py::"
LIFECYCLE = "tests/unit/test_lifecycle.py::"
LIFESPAN = "tests/unit/test_lifespan.py::"
STRICT = "tests/scenario/test_inbox_strict.py::"
BUS = "tests/scenario/test_bus_modules.py::"
OUTCOMES = "tests/unit/test_handlers_outcomes.py::"
STRANGERS = "tests/scenario/test_kafka_strangers.py::"
OPENING = (
    "tests/scenario/test_consumer_faults.py::"
    "test_a_relay_that_crashes_while_the_source_is_opened_is_noticed"
)
PARTS = "tests/unit/test_consumer_parts.py::"
MISBEHAVIOUR = "tests/contract/test_transactions_sqlite3.py::TestMisbehaviour::"


# -- transactions that were rolled back ------------------------------------------------------------
def _rolled_back_is_retried():
    from postroom.transaction import Standing
    from postroom.transactions import dialects

    dialects.ended = lambda present: Standing.COMMITTED if present else Standing.LOST


def _first_of_a_batch_is_missed():
    from postroom.transactions.dialects import Savepoint

    def held(self, driver, earlier):
        yield from ()
        return True

    Savepoint.is_held = held


# -- FastStream ------------------------------------------------------------------------------------
def _one_inbox_name():
    from postroom.integrations import faststream

    faststream.inbox_name = lambda consumer, subscriber: consumer


def _any_size():
    from postroom.integrations import faststream

    assert faststream.size_of
    faststream.size_of = lambda message: 0


def _repeats_return():
    from faststream.exceptions import AckMessage

    from postroom.integrations import faststream

    inbox_middleware = faststream.inbox_middleware

    def careless(*given, **options):
        make = inbox_middleware(*given, **options)

        def made(message, /, *, context):
            one = make(message, context=context)
            consume = one.consume_scope

            async def scope(call_next, message):
                try:
                    return await consume(call_next, message)
                except AckMessage:
                    return None

            one.consume_scope = scope
            return one

        return made

    faststream.inbox_middleware = careless


def _rejected_at_once():
    from postroom.integrations import faststream_runs

    assert faststream_runs.REJECT_SECONDS
    faststream_runs.REJECT_SECONDS = 0.0


def _tombstones_are_empty():
    from postroom.model.envelope import TOMBSTONE
    from postroom.sources.kafka import poller

    incoming = poller.incoming

    def careless(*given):
        message = incoming(*given)
        message.headers.pop(TOMBSTONE, None)
        return message

    poller.incoming = careless


# -- handlers --------------------------------------------------------------------------------------
def _panic_passes():
    import asyncio

    from postroom.engine.handlers.runs import Run

    outcome = Run.outcome

    def careless(self, error=None):
        if error is not None and not isinstance(error, (Exception, asyncio.CancelledError)):
            raise error
        return outcome(self, error)

    Run.outcome = careless


def _any_failure_is_of_decoding():
    from postroom.engine.handlers import undecodable

    undecodable._is_of_decoding = lambda error: True


def _refusals_are_outages():
    from postroom.transactions import conflicts

    conflicts._is_refusal = lambda error: False


def _any_number():
    from postroom.engine.consumer import messages

    messages._number = lambda kseq, *, whatever: kseq


# -- numbers of types without a handler ------------------------------------------------------------
def _sorted(change):
    """Change what becomes of a message when it is sorted; None: it is acknowledged."""
    from postroom.engine.consumer.consumer import Consumer

    sort = Consumer._sort

    def careless(self, bench, deliveries):
        messages = []
        for received in sort(self, bench, deliveries):
            changed = change(received, bench.handlers)
            if changed is None:
                received.delivery.ack()
            else:
                messages.append(changed)
        return messages

    Consumer._sort = careless


def _ignored_numbers_are_missed():
    from postroom.engine.handlers.dispatch import SKIPPED_TYPE

    _sorted(lambda received, handlers: None if received.record.type == SKIPPED_TYPE else received)


def _numbers_without_a_handler_are_buried():
    def change(received, handlers):
        if received.problem or handlers.handles(received.record.type):
            return received
        return received._replace(problem="no handler")

    _sorted(change)


def _module_misses_numbers():
    from postroom import bus

    bus._wanted = lambda received, handlers: (
        received if handlers.handles(received[1].type) else None
    )


# -- the bus and the web process -------------------------------------------------------------------
def _bus_runs_without_its_relays():
    from postroom.engine.lifecycle import Lifecycle

    Lifecycle.is_running = property(lambda self: self._context is not None)


def _bus_ignores_its_relays():
    from postroom.bus import Bus

    Bus._part_broke_down = lambda self, error: None


def _crash_untold():
    from postroom.integrations import asgi

    async def nothing(service, on_crash):
        pass

    asgi._watch = nothing


def _full_database_is_a_failure():
    from postroom import bus
    from postroom.errors import StoreError

    bus.is_passing = lambda error: isinstance(error, StoreError)


def _batch_of_a_module_fails_whole():
    from postroom import bus
    from postroom.broker import Outcome, Verdict
    from postroom.transactions.conflicts import is_passing

    async def keep(backlog, wanted, stops):
        try:
            await backlog.keep([received for _, received in wanted])
        except Exception as error:
            if is_passing(error):
                raise
            for record, _ in reversed(wanted):
                stops.add(record, Outcome(Verdict.FAILED, str(error)))

    bus._keep = keep


def _opening_is_not_watched():
    from postroom.engine.consumer.consumer import Consumer

    noted = Consumer._part_broke_down

    def late(self, error):
        if self._context is not None:
            noted(self, error)

    Consumer._part_broke_down = late


EFFECT_MUTANTS = {
    "in-opening-is-not-watched": Mutant(
        "G7", "a backlog that crashes while the source is opened goes unnoticed",
        _opening_is_not_watched, tests=(OPENING,),
    ),
    "faststream-one-name": Mutant(
        "F4", "all subscribers of a FastStream broker share one inbox name", _one_inbox_name,
        tests=(f"{FASTSTREAM}test_each_subscriber_has_an_inbox_name_of_its_own",),
    ),
    "faststream-repeat-publishes": Mutant(
        "G6", "for a repeated message FastStream publishes a result", _repeats_return,
        tests=(f"{FASTSTREAM}test_a_repeat_publishes_nothing",),
    ),
    "faststream-no-pause": Mutant(
        "F2", "messages without an id are rejected and logged without a pause", _rejected_at_once,
        tests=(f"{FASTSTREAM}test_a_message_without_an_id_is_rejected_after_a_pause",),
    ),
    "in-tombstone-unsaid": Mutant(
        "I5", "a record without a value is handled as one with an empty value",
        _tombstones_are_empty,
        tests=(f"{STRANGERS}test_the_same_body_under_different_keys_is_not_the_same_message",),
    ),
    "panic-ends-the-relay": Mutant(
        "G7", "a BaseException of an async handler is not caught", _panic_passes,
        tests=("tests/contract/test_transactions_aiosqlite.py::TestMisbehaviour",),
    ),
    "any-failure-is-of-decoding": Mutant(
        "P2", "any failure of a handler rejects an event whose body is no JSON",
        _any_failure_is_of_decoding,
        tests=(f"{OUTCOMES}test_only_a_handler_that_cannot_decode_its_event_rejects_it",),
    ),
    "faststream-any-size": Mutant(
        "F1", "FastStream's subscribers get messages of any size", _any_size,
        tests=(f"{FASTSTREAM}test_a_message_without_an_id_or_too_large_is_rejected_once",),
    ),
    "rolled-back-is-retried": Mutant(
        "G6", "a handler that rolled back, committed other work and went on is run again",
        _rolled_back_is_retried,
        tests=(f"{MISBEHAVIOUR}test_a_handler_takes_effect_once_or_not_at_all",),
    ),
    "rolled-back-in-a-batch-is-missed": Mutant(
        "G6", "the handler that rolled back a batch is not found, and is run again",
        _first_of_a_batch_is_missed,
        tests=(f"{MISBEHAVIOUR}test_each_of_several_in_a_batch_takes_effect_once_or_not_at_all",),
    ),
    "refusal-is-an-outage": Mutant(
        "P2", "values that the database refuses count as an outage of it", _refusals_are_outages,
        tests=(f"{OUTCOMES}test_values_that_the_database_refuses_are_no_outage",),
    ),
    "in-any-number": Mutant(
        "G7", "a strict number that no later one can exceed is accepted", _any_number,
        tests=(f"{PARTS}test_a_number_that_nobody_counts_to_is_refused",),
    ),
    "in-ignored-number-missed": Mutant(
        "I6", "the number of an ignored type is missed by its key for ever",
        _ignored_numbers_are_missed,
        tests=(f"{STRICT}test_the_number_of_a_type_that_is_ignored_is_stepped_over",),
    ),
    "in-number-buried": Mutant(
        "I6", "a strict event without a handler is buried, and its key waits for ever",
        _numbers_without_a_handler_are_buried,
        tests=(f"{STRICT}test_a_key_waits_for_the_handler_of_a_number_and_goes_on_with_it",),
    ),
    "bus-number-missed": Mutant(
        "I6", "a strict module is not told the numbers of types that it has no handler for",
        _module_misses_numbers,
        tests=(f"{BUS}test_a_strict_module_steps_over_what_it_has_no_handler_for",),
    ),
    "bus-runs-when-broken": Mutant(
        "G7", "a bus counts as running while one of its relays has crashed",
        _bus_runs_without_its_relays,
        tests=(f"{LIFESPAN}test_a_bus_whose_relay_crashes_does_not_run",),
    ),
    "bus-crash-unnoticed": Mutant(
        "G7", "a relay of the bus crashes and the bus goes on without it",
        _bus_ignores_its_relays,
        tests=(f"{LIFECYCLE}test_a_service_that_crashes_stops_the_whole_and_is_reported_once",),
    ),
    "crash-untold": Mutant(
        "G7", "a web process is not told that one of its services crashed", _crash_untold,
        tests=(f"{LIFESPAN}test_a_service_that_crashes_is_told",),
    ),
    "bus-full-database-is-a-failure": Mutant(
        "P2", "a module's database that takes nothing costs the events their attempts",
        _full_database_is_a_failure,
        tests=(f"{BUS}test_a_module_whose_database_takes_nothing_costs_no_event",),
    ),
    "bus-batch-fails-whole": Mutant(
        "F1", "one event that a module cannot keep costs all of its batch",
        _batch_of_a_module_fails_whole,
        tests=(f"{BUS}test_one_event_that_a_module_cannot_keep_costs_one_event",),
    ),
}  # fmt: skip
