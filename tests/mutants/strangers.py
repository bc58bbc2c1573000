"""Bugs in what is done with messages, rows and servers of strangers."""

from tests.mutants.mutant import Mutant

MONGO = "tests/contract/test_store_mongo.py::TestReplicaSetOfOne::"
CONTRACT = "tests/contract/test_consumer_memory.py::TestMemory::"
STRANGERS = "tests/scenario/test_kafka_strangers.py::"


def _kafka_broken_headers_ignored():
    from postroom.sources.kafka import poller

    incoming = poller.incoming
    poller.incoming = lambda *given: incoming(*given)._replace(problem="")


def _cloud_id_alone():
    from postroom.model import foreign_messages

    foreign_messages.cloud_id = lambda _source, event_id: event_id


def _key_left_out_of_the_hash():
    from postroom.model import message_id

    plain = message_id.record_hash
    message_id.record_hash = lambda message: plain(message._replace(key=None))


def _latest_leaves_no_trace():
    from postroom.sources.kafka.poller import Poller

    Poller._at_the_end = lambda _self, _client, partitions: partitions


def _topic_id_left_out():
    from postroom.sources.kafka.cluster import Cluster

    Cluster.topic_ids = lambda _self, topics: dict.fromkeys(topics, "")


def _no_limit():
    from postroom.engine.consumer import consumer

    consumer.limited = lambda delivery, _: delivery


def _never_enough():
    from postroom.sources.kafka.poller import Arrivals

    Arrivals.are_enough = False


def _verbs_print_anything():
    from postroom.cli import health, list_events, status

    for module in (health, list_events, status):
        module.one_line = lambda text: text


def _secret_options_shown():
    import re

    from postroom.model import url

    url._SECRET = re.compile(r"password$|secret$", re.IGNORECASE)


def _secrets_in_values_shown():
    import re

    from postroom.model import url

    url._HOLDS_SECRET = re.compile(r"(?!)")


def _tls_without_names():
    from postroom.stores.mysql.tls import Tls

    context = Tls.context
    Tls.context = lambda self: context(
        self._replace(mode="verify_ca" if self.mode == "verify_identity" else self.mode)
    )


def _tls_forgotten():
    from postroom.stores.mysql.settings import MysqlSettings

    MysqlSettings.tls = None


def _lists_of_dates_are_dates():
    from postroom.stores.mongo import stage

    stage._is_odd = lambda due: False


STRANGER_MUTANTS = {
    "verbs-print-anything": Mutant(
        "S4.9", "status, health, audit and list send a stranger's commands to the terminal",
        _verbs_print_anything, tests=("tests/cli/test_hostile_text.py",),
    ),
    "secret-options-shown": Mutant(
        "S4.9", "a URL is printed with a secret option of a driver", _secret_options_shown,
        tests=("tests/unit/test_url.py::test_secrets_are_masked_wherever_a_url_is_printed",),
    ),
    "secrets-in-values-shown": Mutant(
        "S4.9", "a URL is printed with a secret inside an option's value", _secrets_in_values_shown,
        tests=("tests/unit/test_url.py::test_secrets_are_masked_wherever_a_url_is_printed",),
    ),
    "my-tls-forgotten": Mutant(
        "S4.9", "ssl_mode is accepted, and the connection is open", _tls_forgotten,
        tests=("tests/unit/test_mysql_store.py::test_without_an_option_of_tls_there_is_none",),
    ),
    "my-tls-without-names": Mutant(
        "S4.9", "verify_identity accepts the certificate of another server", _tls_without_names,
        tests=("tests/scenario/test_mysql_tls.py",),
    ),
    "mongo-dates-in-a-list": Mutant(
        "F1", "a document that awaits a list of dates ends the relay", _lists_of_dates_are_dates,
        tests=(f"{MONGO}test_a_row_that_waits_for_no_time_holds_up_nobody",),
    ),
    "in-kafka-never-enough": Mutant(
        "D1", "messages are fetched without a bound while the event loop is blocked",
        _never_enough,
        tests=("tests/unit/test_consumer_parts.py::test_arrivals_are_enough_by_number_or_by_size",),
    ),
    "in-no-limit": Mutant(
        "G7", "a message of any size is handled", _no_limit,
        tests=(f"{CONTRACT}test_a_message_that_is_too_large_costs_itself_alone",),
    ),
    "in-cloud-id-alone": Mutant(
        "I5", "a CloudEvent is known by its id without its source", _cloud_id_alone,
        tests=(f"{CONTRACT}test_a_cloudevent_is_known_by_its_source_and_its_id",),
    ),
    "in-key-left-out-of-the-hash": Mutant(
        "I5", "records with one body under different keys are one message",
        _key_left_out_of_the_hash,
        tests=(f"{STRANGERS}test_the_same_body_under_different_keys_is_not_the_same_message",),
    ),
    "in-latest-leaves-no-trace": Mutant(
        "G2", "a group that begins at the end does not commit where it began",
        _latest_leaves_no_trace,
        tests=(f"{STRANGERS}test_what_was_in_hand_of_a_new_group_is_not_lost",),
    ),
    "in-topic-id-left-out": Mutant(
        "I5", "a topic that was made again has the places of the old one", _topic_id_left_out,
        tests=(f"{STRANGERS}test_a_topic_that_is_made_again_has_other_messages",),
    ),
    "in-kafka-broken-headers-ignored": Mutant(
        "G7", "a message whose headers cannot be read is handled as one without headers",
        _kafka_broken_headers_ignored,
        tests=(f"{STRANGERS}test_odd_records_cost_only_themselves[direct]",),
    ),
}  # fmt: skip
