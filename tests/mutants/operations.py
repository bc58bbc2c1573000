"""Bugs that an operator would pay for: wrong books, leaked secrets, probes that restart for nothing."""

from contextlib import suppress
from dataclasses import replace

from tests.mutants.mutant import Mutant

CONFIGURATION = "tests/unit/test_configuration.py"
CONTRACT = "tests/contract/test_store_sqlite.py"
DOCTOR = "tests/cli/test_doctor.py"
FINGERPRINT = "tests/unit/test_dead_letters.py"
HEALTH = "tests/unit/test_health.py"
LOG = "tests/unit/test_log_observer.py"
METRICS = "tests/unit/test_metrics.py"
RECEIVING = "tests/unit/test_metrics_consumers.py"
SHOW = "tests/cli/test_show.py"
SERVING = "tests/unit/test_metrics_server.py::"
TRACING = "tests/unit/test_tracing.py"


def _audit_forgotten():
    from postroom.stores.sqlite import commands

    commands.note = lambda db, done, now: None


def _audit_without_effect():
    from postroom.stores.sqlite import commands

    note = commands.note
    commands.note = lambda db, done, now: note(db, done._replace(how_many=done.how_many or 1), now)


def _numbers_count():
    from postroom.model import dead_letters

    dead_letters._PARTS = dead_letters._PARTS[:-2]


def _labels_unbounded():
    from postroom.telemetry.metrics import RelayMetrics

    RelayMetrics._bounded = lambda self, stream, topic: topic


def _counted_at_every_scrape():
    from postroom.telemetry.metrics import RelayMetrics

    collect = RelayMetrics.collect

    def eager(self):
        if self._sampler is not None:
            for relay in self._sampler._relays:
                coroutine = relay.store.stats(relay.settings.stream)
                with suppress(StopIteration):  # it ends without a wait
                    coroutine.send(None)
        yield from collect(self)

    RelayMetrics.collect = eager


def _restart_for_a_dead_broker():
    from postroom.telemetry.health import Answer, Health

    ready = Health.ready

    def strict(self):
        ok, facts = ready(self)
        return Answer(ok and not facts["warnings"], facts)

    Health.ready = strict


def _ready_whatever():
    from postroom.telemetry.health import Answer, Health

    ready = Health.ready
    Health.ready = lambda self: Answer(True, ready(self).facts)


def _secrets_shown():
    from postroom.telemetry import log

    log.mask = lambda text: text


def _file_before_variables():
    from postroom.cli.configuration import Configuration

    plan = Configuration._plan

    def wrong(self, section, flags):
        kept, self._environment = self._environment, {**self._environment, **self._file}
        try:
            return plan(self, section, flags)
        finally:
            self._environment = kept

    Configuration._plan = wrong


def _unknown_keys_pass():
    from postroom.cli import configuration

    read = configuration.Configuration._read_file

    def lenient(self):
        known = {**configuration.SETTINGS, configuration.SECTION: None}
        values = {n: v for n, v in self.source.values.items() if n in known}
        self.source = replace(self.source, values=values)
        read(self)

    configuration.Configuration._read_file = lenient


def _trace_overwritten():
    from postroom.telemetry import tracing

    carry = tracing.carry
    tracing.carry = lambda event: carry(replace(event, headers={}))


def _nobody_serves_is_fine():
    from postroom.admin import diagnosis

    judge = diagnosis.judge_stream
    diagnosis.judge_stream = lambda *given: (f for f in judge(*given) if f.level != "error")


def _short_memory_is_fine():
    from postroom.cli import doctor_brokers

    doctor_brokers.judge_memory = lambda *given: iter(())


def _repeats_are_handled():
    from postroom.telemetry import consumer_metrics

    counts = consumer_metrics._counts

    def generous(consumer, backlog):
        found = counts(consumer, backlog)
        return found | {"handled": found["handled"] + found["repeated"]}

    consumer_metrics._counts = generous


def _terminal_obeys():
    from postroom.cli import show

    show._readable = lambda character: character


def _broker_never_lost():
    from postroom.source import SourceConnection

    SourceConnection.lost = lambda self, why: True


def _broker_told_each_time():
    from postroom.source import SourceConnection

    lost = SourceConnection.lost

    def careless(self, why):
        lost(self, why)
        return True

    SourceConnection.lost = careless


def _mask_whole_words():
    from postroom.model import secrets

    secrets._mask_url = lambda word: secrets._URL_PASSWORD.sub(r"\1***", word[0])


def _any_number_of_connections():
    from socketserver import ThreadingMixIn

    from postroom.telemetry.server import _Server

    _Server.process_request = ThreadingMixIn.process_request
    _Server.process_request_thread = ThreadingMixIn.process_request_thread


def _connections_without_end():
    from postroom.telemetry.server import _Server

    _Server.service_actions = lambda self: None


def _accept_at_once():
    from wsgiref.simple_server import WSGIServer

    from postroom.telemetry import server

    server._Server.get_request = lambda self: WSGIServer.get_request(self)


def _any_host():
    from postroom.telemetry.server import MetricsServer

    make = MetricsServer.__init__
    MetricsServer.__init__ = lambda self, host, *others: make(self, host or "0.0.0.0", *others)


def _code_of_any_folder():
    from postroom.cli import doctor

    doctor.refuse_code = lambda setting, unnamed_file: None


OPERATIONS_MUTANTS = {
    "ops-broker-never-lost": Mutant(
        "G7", "a consumer without its broker looks well", _broker_never_lost,
        tests=(f"{HEALTH}::test_the_broker_of_a_consumer_that_cannot_be_reached_is_a_warning",),
    ),
    "ops-broker-told-each-time": Mutant(
        "F2", "each failed attempt to reach a broker is a log line", _broker_told_each_time,
        tests=("tests/unit/test_kafka_source.py::test_brokers_that_are_back_are_told_once",),
    ),
    "ops-mask-is-square": Mutant(
        "D1", "the time to mask a text grows with the square of its length", _mask_whole_words,
        tests=(f"{LOG}::test_every_search_of_the_mask_finds_its_end",),
    ),
    "ops-any-number-of-connections": Mutant(
        "D1", "each connection to the metrics port has a thread, however many there are",
        _any_number_of_connections,
        tests=(f"{SERVING}test_a_probe_is_answered_beside_hundreds_of_idle_connections",),
    ),
    "ops-connections-without-end": Mutant(
        "D1", "a connection to the metrics port that says nothing stays open",
        _connections_without_end,
        tests=(f"{SERVING}test_an_idle_connection_ends_when_its_time_is_over",),
    ),
    "ops-accept-at-once": Mutant(
        "F2", "the metrics port spins without file descriptors", _accept_at_once,
        tests=(f"{SERVING}test_without_file_descriptors_it_waits_instead_of_spinning",),
    ),
    "ops-any-host": Mutant(
        "F4", "an empty metrics_host means every address", _any_host,
        tests=(f"{SERVING}test_an_empty_host_is_refused",),
    ),
    "ops-code-of-any-folder": Mutant(
        "F4", "the doctor runs code that only the current folder asks for", _code_of_any_folder,
        tests=(f"{DOCTOR}::test_it_imports_no_handlers_that_only_the_current_folder_names",),
    ),
    "ops-audit-forgotten": Mutant(
        "L7", "what people do is not written down", _audit_forgotten, tests=(CONTRACT,)
    ),
    "ops-audit-without-effect": Mutant(
        "L7", "what changed nothing is written down", _audit_without_effect, tests=(CONTRACT,)
    ),
    "ops-numbers-count": Mutant(
        "G7", "each number in an error makes a group of its own", _numbers_count,
        tests=(FINGERPRINT,),
    ),
    "ops-labels-unbounded": Mutant(
        "S2.7", "every topic is a label", _labels_unbounded, tests=(METRICS,)
    ),
    "ops-counted-at-every-scrape": Mutant(
        "S2.7", "a scrape counts the table", _counted_at_every_scrape, tests=(METRICS,)
    ),
    "ops-restart-for-a-dead-broker": Mutant(
        "P2", "a dead broker makes a relay not ready", _restart_for_a_dead_broker, tests=(HEALTH,)
    ),
    "ops-ready-whatever": Mutant("G5", "a relay is always ready", _ready_whatever, tests=(HEALTH,)),
    "ops-secrets-shown": Mutant("S4.9", "a log line shows a password", _secrets_shown, tests=(LOG,)),
    "ops-file-before-variables": Mutant(
        "S4.3", "the file overrides variables", _file_before_variables, tests=(CONFIGURATION,)
    ),
    "ops-unknown-keys-pass": Mutant(
        "S4.3", "an unknown key is ignored", _unknown_keys_pass, tests=(CONFIGURATION,)
    ),
    "ops-trace-overwritten": Mutant(
        "S4.9", "an event's own trace context is lost", _trace_overwritten, tests=(TRACING,)
    ),
    "ops-nobody-serves-is-fine": Mutant(
        "G2", "the doctor does not mind that nobody delivers", _nobody_serves_is_fine,
        tests=(DOCTOR,),
    ),
    "ops-short-memory-is-fine": Mutant(
        "G6", "the doctor does not mind an inbox that forgets too soon", _short_memory_is_fine,
        tests=(DOCTOR,),
    ),
    "ops-repeats-are-handled": Mutant(
        "G6", "a repeat is counted as handled", _repeats_are_handled, tests=(RECEIVING,)
    ),
    "ops-terminal-obeys": Mutant(
        "S4.9", "a payload can send commands to a terminal", _terminal_obeys, tests=(SHOW,)
    ),
}  # fmt: skip
