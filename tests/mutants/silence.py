"""Bugs that let something fail in silence, or that drown it in a flood of lines."""

from tests.mutants.mutant import Mutant

PROBER = "tests/unit/test_prober.py"
EMBEDDED = "tests/unit/test_embedded_log.py"
LOG = "tests/unit/test_log_observer.py"


def _nothing_is_probed():
    from postroom.engine.relay.prober import Corrections

    Corrections.note = lambda self, record, error, now: None


def _only_the_probe_goes_out():
    from postroom.engine.relay.prober import Corrections

    Corrections.delivered = lambda self, records: None


def _no_route_is_no_answer():
    from postroom import broker

    broker._ANSWERS = tuple(v for v in broker._ANSWERS if v is not broker.Verdict.MISCONFIGURED)


def _an_idle_outage_lasts():
    from postroom.engine.relay.prober import Prober

    async def asks_nothing(self):
        pass

    Prober._ask_destination = asks_nothing


def _no_default_log():
    from postroom.engine import lifecycle

    class Silent(lifecycle.LogObserver):
        def observe(self, fact):
            pass

    lifecycle.LogObserver = Silent


def _every_line_is_written():
    from postroom.engine.log_limits import Causes

    Causes.happened = lambda self, name, error, now: 0


SILENCE_MUTANTS = {
    "nothing-probed": Mutant(
        "P2", "events wait for the rest of their delay after a topic was created", _nothing_is_probed,
        tests=(f"{PROBER}::test_events_that_waited_for_a_topic_go_out_within_seconds",),
    ),
    "only-the-probe": Mutant(
        "P2", "of the events that waited for a topic only one goes out", _only_the_probe_goes_out,
        tests=(f"{PROBER}::test_events_that_waited_for_a_topic_go_out_within_seconds",),
    ),
    "no-route-no-answer": Mutant(
        "P2", "an unroutable event does not end an outage", _no_route_is_no_answer,
        tests=(f"{PROBER}::test_only_an_answer_of_the_broker_itself_closes_the_breaker",),
    ),
    "idle-outage": Mutant(
        "P2", "an outage without an event to try with never ends", _an_idle_outage_lasts,
        tests=(f"{PROBER}::test_an_outage_ends_although_no_event_is_left_to_try_with",),
    ),
    "no-default-log": Mutant(
        "P2", "an embedded relay logs nothing", _no_default_log,
        tests=(f"{EMBEDDED}::test_a_relay_logs_failures_and_the_dead_letter_once",),
    ),
    "alarm-flood": Mutant(
        "P2", "a missing topic has a line for each event", _every_line_is_written,
        tests=(f"{LOG}::test_ten_thousand_blocked_keys_of_one_cause_have_few_lines",),
    ),
}  # fmt: skip
