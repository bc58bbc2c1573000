"""Bugs of a first Kafka publisher and consumer that need no broker to be caught."""

from tests.mutants.mutant import Mutant

SESSIONS = "tests/unit/test_kafka_sessions.py::"
SOURCE = "tests/unit/test_kafka_source.py::"
STARTS = "tests/unit/test_kafka_starts.py::"
QUEUE = "tests/scenario/test_kafka_queue.py::"


def _ended_calls_go_on():
    from postroom.brokers.kafka.session import Session

    def withdraw(self, call):
        self.calls.discard(call)
        self._given_up.discard(call)
        self._end_if_idle()

    Session.withdraw = withdraw


def _lane_goes_on_with_a_stopped_key():
    from postroom.brokers.kafka.broker import KafkaBroker

    publish = KafkaBroker._publish_lane

    class Nothing(set):
        def __contains__(self, key):
            return False

    async def all_of_it(self, cluster, call, first, verdict):
        call.stopped = Nothing()
        await publish(self, cluster, call, first, verdict)

    KafkaBroker._publish_lane = all_of_it


def _same_offset_same_topic():
    from postroom.sources.kafka.poller import Poller

    begun_again = Poller._begun_again

    def only_if_lower(self, old):
        return old if self._offset == old.highest else begun_again(self, old)

    hand_over = Poller._hand_over

    def one_by_one(self, client, messages):
        for message in messages:
            self._offset = message.offset()
            hand_over(self, client, [message])

    Poller._begun_again, Poller._hand_over = only_if_lower, one_by_one


def _unread_offset_is_none():
    from postroom.sources.kafka.cluster import Cluster

    Cluster.committed = lambda self, client, partitions: client.committed(
        list(partitions), timeout=10.0
    )


KAFKA_MUTANTS = {
    "kafka-ended-calls-go-on": Mutant(
        "P1", "messages of a call that has ended leave once the queue has room",
        _ended_calls_go_on,
        tests=(f"{SESSIONS}test_messages_of_a_call_that_has_ended_do_not_leave_when_there_is_room",),
    ),
    "kafka-lane-goes-on": Mutant(
        "B5", "a transaction goes on with a key of which an event cannot be written",
        _lane_goes_on_with_a_stopped_key,
        tests=(f"{QUEUE}test_what_follows_an_event_that_cannot_go_stays_behind_it",),
    ),
    "in-kafka-same-offset": Mutant(
        "G2", "the last offset once more is the same message, also in a topic created again",
        _same_offset_same_topic,
        tests=(
            f"{SOURCE}test_an_offset_that_came_before_is_one_of_a_topic_that_was_created_again",
        ),
    ),
    "in-kafka-unread-offset": Mutant(
        "G2", "a group whose offset cannot be read starts at the end", _unread_offset_is_none,
        tests=(f"{STARTS}test_an_offset_that_cannot_be_read_is_not_taken_for_none",),
    ),
}  # fmt: skip
