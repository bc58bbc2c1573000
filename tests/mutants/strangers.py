"""Bugs in what is done with messages of foreign senders."""

from tests.mutants.mutant import Mutant

STRANGERS = "tests/scenario/test_kafka_strangers.py::"


def _kafka_broken_headers_ignored():
    from postroom.consumers import kafka, kafka_message

    def ignoring(message):
        return kafka_message.incoming(message)._replace(problem="")

    kafka.incoming = ignoring


STRANGER_MUTANTS = {
    "in-kafka-broken-headers-ignored": Mutant(
        "G7", "a message whose headers cannot be read is handled as one without headers",
        _kafka_broken_headers_ignored,
        tests=(f"{STRANGERS}test_odd_records_cost_only_themselves[direct]",),
    ),
}  # fmt: skip
