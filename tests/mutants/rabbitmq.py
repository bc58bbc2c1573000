"""Bugs of a first RabbitMQ consumer: what it cannot decode, and how it connects again."""

from tests.mutants.mutant import Mutant

CONTENT = "tests/unit/test_rabbitmq_content.py"
OUTLIVE = "test_attempts_outlive_a_lost_connection"
CRASHES = "test_a_consumer_that_crashes_again_and_again_loses_nothing"
SOURCE = "tests/unit/test_rabbitmq_source.py"
SETUP = "tests/scenario/test_rabbitmq_setup.py::"


def _text_is_strict():
    from postroom.brokers.rabbitmq import content_header

    content_header._text = lambda data, what, problems: data.decode()


def _reconnects_at_once():
    from postroom.model.pauses import Pauses

    Pauses.grow = lambda self: 0.0


def _default_limit():
    from postroom.brokers.rabbitmq import topology

    topology.NO_LIMIT = 20


def _attempts_forgotten():
    from postroom.engine.consumer.attempts import Attempts

    Attempts.keep = lambda self, record, wait_seconds: None


def _refusals_are_final():
    from postroom.brokers.rabbitmq.topology import Inequivalent

    Inequivalent.read = classmethod(lambda cls, refusal: None)


def _any_queue_will_do():
    from postroom.brokers.rabbitmq import topology

    topology.refused = lambda options, *, consumes: {}


RABBIT_CONSUMER_MUTANTS = {
    "rabbit-refusal-is-final": Mutant(
        "G7", "a queue that exists with other arguments is an error", _refusals_are_final,
        tests=(f"{SETUP}test_a_queue_that_exists_otherwise_is_used_as_it_is[limit]",),
    ),
    "rabbit-any-queue-will-do": Mutant(
        "I3", "a consumer takes a queue that several consumers share", _any_queue_will_do,
        tests=(f"{SETUP}test_a_queue_that_several_would_share_is_a_relays_but_no_consumers",),
    ),
    "in-rabbit-strict-text": Mutant(
        "G7", "a property that is not UTF-8 ends the connection", _text_is_strict, tests=(CONTENT,)
    ),
    "in-rabbit-no-pause": Mutant(
        "G7", "a lost connection is made again without a pause", _reconnects_at_once,
        tests=(SOURCE,),
    ),
    "in-attempts-forgotten": Mutant(
        "G7", "attempts of a message begin at 0 when its connection is lost", _attempts_forgotten,
        tests=("tests/contract/test_consumer_memory.py::TestMemory::" + OUTLIVE,),
    ),
    "in-rabbit-default-limit": Mutant(
        "G2", "a declared queue drops what it has delivered 20 times", _default_limit,
        tests=("tests/scenario/test_consumer_rabbitmq.py::" + CRASHES,),
    ),
}  # fmt: skip
