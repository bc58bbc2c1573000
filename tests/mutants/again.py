"""Bugs in what is tried again: without a pause, without an end, or what must not be."""

from tests.mutants.mutant import Mutant

LANES = "tests/unit/test_kafka_lane_producers.py::"
PAUSES = "tests/unit/test_consumer_pauses.py::"
STRANGERS = "tests/scenario/test_kafka_strangers.py::"
SOURCE = "tests/unit/test_kafka_source.py::"
FASTSTREAM = "tests/scenario/test_faststream_misbehaviour.py::"


def _faststream_loose_is_delivered_again():
    from postroom.integrations import faststream, faststream_runs

    class Forgiving(faststream_runs.Failures):
        async def judge(self, run, message, error):
            if not isinstance(error, faststream_runs.OutsideTransactionError):
                await super().decide(run, message, error)

    faststream.Failures = Forgiving


def _faststream_without_an_end():
    from postroom.integrations import faststream_runs

    faststream_runs._MOST_TRIES = 10**9


def _faststream_without_a_pause():
    from postroom.integrations import faststream_runs

    faststream_runs.FIRST_PAUSE = 0.0


def _refused_offsets_at_once():
    from postroom.sources.kafka.commits import Commits

    Commits.may_be_offered = lambda _self, _place: True


def _partly_refused_is_taken():
    from postroom.sources.kafka.commits import Commits

    answered = Commits.answered
    Commits.answered = lambda self, error, partitions: (
        answered(self, error, partitions) if error else []
    )


def _steps_without_a_pause():
    from postroom.brokers.kafka import lane_producers

    lane_producers._FIRST_PAUSE = 0.0


def _keeping_without_a_pause():
    from postroom.engine.consumer import context

    context._FIRST_PAUSE = 0.0


def _topics_are_not_looked_at():
    from postroom.sources.kafka.cluster import Generations

    Generations.look = lambda _self, _topics: {}


def _old_topics_count():
    from postroom.sources.kafka.poller import Poller

    Poller._begin_topic_again = lambda _self, _client, _topic, _topic_id: None


def _last_offsets_without_a_limit():
    from postroom.sources.kafka import poller

    poller._FINISH_SECONDS = 10**9


def _last_offsets_are_not_waited_for():
    from postroom.sources.kafka.poller import Poller

    Poller._finish = lambda self, client: self._commit(client, last=True)


def _stays_in_the_group():
    from postroom.sources.kafka.poller import Poller

    Poller._leave_in_time = lambda self, client: None


AGAIN_MUTANTS = {
    "kafka-group-not-left": Mutant(
        "F2", "a frozen broker that wakes up waits for a member of the past", _stays_in_the_group,
        tests=(
            f"{SOURCE}test_a_silent_cluster_is_left_before_the_session_ends_and_joined_again",
        ),
    ),
    "in-last-offsets-without-a-limit": Mutant(
        "F2", "a stop waits for Kafka for ever", _last_offsets_without_a_limit,
        tests=(f"{SOURCE}test_the_last_offsets_are_waited_for_at_the_end_but_not_for_ever",),
    ),
    "in-last-offsets-are-not-waited-for": Mutant(
        "G6", "a stop does not wait for the answer to its last commit",
        _last_offsets_are_not_waited_for,
        tests=(f"{SOURCE}test_the_last_offsets_are_waited_for_at_the_end_but_not_for_ever",),
    ),
    "in-keeping-without-a-pause": Mutant(
        "F2", "a store that fails is asked at once again", _keeping_without_a_pause,
        tests=(f"{PAUSES}test_a_store_that_fails_without_end_is_asked_ever_less_often",),
    ),
    "in-topics-are-not-looked-at": Mutant(
        "G2", "a topic that is made again is read from where the old one was",
        _topics_are_not_looked_at,
        tests=(f"{STRANGERS}test_a_topic_that_is_made_again_under_a_consumer_is_read_from_its_start",),
    ),
    "in-old-topics-count": Mutant(
        "G2", "a topic that is made again is noticed, and nothing follows", _old_topics_count,
        tests=(f"{STRANGERS}test_a_topic_that_is_made_again_under_a_consumer_is_read_from_its_start",),
    ),
    "in-refused-offsets-at-once": Mutant(
        "F2", "offsets that Kafka refuses are offered with every poll", _refused_offsets_at_once,
        tests=(f"{SOURCE}test_offsets_that_are_always_refused_are_offered_ever_less_often",),
    ),
    "in-partly-refused-is-taken": Mutant(
        "F1", "only the error of a whole request is looked at", _partly_refused_is_taken,
        tests=(f"{SOURCE}test_a_partition_whose_offsets_are_refused_costs_no_other",),
    ),
    "kafka-steps-without-a-pause": Mutant(
        "F2", "a step of a transaction is repeated at once", _steps_without_a_pause,
        tests=(f"{LANES}test_a_step_that_may_be_repeated_is_repeated_with_growing_pauses",),
    ),
    "fs-loose-is-delivered-again": Mutant(
        "F3", "a subscriber that rolled back and committed is run again",
        _faststream_loose_is_delivered_again,
        tests=(f"{FASTSTREAM}test_on_rabbitmq_what_cannot_be_done_is_dead_lettered",),
    ),
    "fs-without-an-end": Mutant(
        "F2", "a subscriber that swallows errors is run for ever", _faststream_without_an_end,
        tests=(f"{FASTSTREAM}test_on_rabbitmq_what_cannot_be_done_is_dead_lettered",),
    ),
    "fs-without-a-pause": Mutant(
        "F2", "a message that fails is nacked at once", _faststream_without_a_pause,
        tests=(f"{FASTSTREAM}test_a_subscriber_that_always_fails_is_tried_with_growing_pauses",),
    ),
}  # fmt: skip
