"""Bugs of a first Kafka or RabbitMQ publisher, each caught on the real broker."""

from tests.mutants.mutant import Mutant

KAFKA = "tests/scenario/test_kafka_rules.py::"
KAFKA_QUEUE = "tests/scenario/test_kafka_queue.py::"
KAFKA_LIMITS = "tests/scenario/test_kafka_limits.py::"
KAFKA_LANES = "tests/scenario/test_kafka_lanes.py::"
RABBIT = "tests/scenario/test_rabbitmq_rules.py::"
RABBIT_OUTAGES = "tests/scenario/test_rabbitmq_outages.py::"


def _kafka_setting(name, value):
    """Set something of librdkafka that the broker never sets so."""
    from postroom.brokers.kafka.settings import KafkaSettings

    producer = KafkaSettings.producer
    assert name in producer(KafkaSettings(servers="localhost"))

    KafkaSettings.producer = lambda self: {**producer(self), name: value}


def _kafka_gapless_off():
    _kafka_setting("enable.gapless.guarantee", False)


def _kafka_message_timeout():
    _kafka_setting("message.timeout.ms", 1_000)


def _kafka_other_partitioner():
    _kafka_setting("partitioner", "consistent_random")


def _kafka_goes_on_with_a_stopped_key():
    from postroom.brokers.kafka.publish_call import PublishCall

    class Never(set):
        def add(self, _):
            pass

    make = PublishCall.__init__

    def careless(self, records, reporter):
        make(self, records, reporter)
        self.stopped = Never()

    PublishCall.__init__ = careless


def _kafka_full_queue_overtaken():
    """What meets a full queue goes later; what is behind it goes as soon as there is room."""
    from postroom.brokers.kafka.session import Session

    def post(self, call, indices):
        self.calls.add(call)
        self._produce(self._producer, call, indices)
        self._wanted.set()

    def go_on(self):
        for call, indices in [self._waiting.popleft() for _ in range(len(self._waiting))]:
            half = len(indices) // 2
            for part in (indices[half:], indices[:half]):
                self._produce(self._producer, call, part)
        self._wanted.set()

    Session.post, Session._go_on = post, go_on


def _kafka_batch_buried():
    from postroom.broker import Outcome, Verdict
    from postroom.brokers.kafka import verdicts

    judge = verdicts.in_a_batch

    def harsh(loss, unreachable="", unavailable_partitions=""):
        if loss.code in verdicts.REFUSED:
            return Outcome(Verdict.REJECTED, loss.error)
        return judge(loss, unreachable, unavailable_partitions)

    verdicts.in_a_batch = harsh


def _kafka_confirmed_when_posted():
    from postroom.brokers.kafka.session import Session

    post = Session.post

    def hasty(self, call, indices):
        post(self, call, indices)
        call.confirmed(list(indices))

    Session.post = hasty


def _kafka_batches_outgrow_the_topic():
    from postroom.brokers.kafka import topics

    topics._MARGIN = 1_000.0


def _kafka_topics_unasked():
    """Whether a topic is there is left for `produce` to find out."""
    from postroom.brokers.kafka.topics import Topics, TopicState

    async def hopeful(self, names):
        return {name: TopicState("", float("inf")) for name in names}

    Topics.look = hopeful


def _kafka_topics_at_once():
    """The part of a key in another topic does not wait for the part before it."""
    from postroom.brokers.kafka.publish_call import PublishCall

    plan = PublishCall.plan
    PublishCall.plan = lambda self, topic_of, refusal: plan(self, None, refusal)


def _kafka_given_up_and_kept():
    """Nobody waits for what was given up, and its producer goes on trying."""
    from postroom.brokers.kafka.session import Session

    def end(self, unreachable=""):
        self.retired, self.unreachable = True, unreachable
        self._close_all()
        self._gone.set()

    Session.end = end


def _kafka_id_per_relay():
    from uuid import uuid4

    from postroom.brokers.kafka.lane_producers import LaneProducers

    send = LaneProducers.send

    async def own(self, outbox_id, *rest):
        mine = self.__dict__.setdefault("_mine", uuid4().hex)
        return await send(self, f"{outbox_id}-{mine}", *rest)

    LaneProducers.send = own


def _kafka_reports_by_turn():
    """Who was sent first is taken to be reported first."""
    from itertools import count

    from postroom.brokers.kafka import session

    land, turns = session._land, {}

    def in_turn(append, call, i, error, message):
        land(append, call, next(turns.setdefault(call, count())), error, message)

    session._land = in_turn


def _kafka_partition_unasked():
    from postroom.brokers.kafka.sessions import Sessions

    async def well(self, call):
        return "", {}

    Sessions._find_unavailable = well


def _kafka_key_is_no_id():
    from dataclasses import replace

    from postroom.brokers.kafka import broker

    write = broker.writer
    broker.writer = lambda settings: write(replace(settings, key="key"))


def _rabbit_mandatory_off():
    from postroom.brokers.rabbitmq import frames

    frames._MANDATORY = b"\x00"


def _rabbit_transient():
    from postroom.brokers.rabbitmq import frames

    frames._PERSISTENT = b"\x01"


def _rabbit_return_is_a_confirm():
    """What aio-pika does by default: a message that came back is the call's normal result."""
    from postroom.brokers.rabbitmq.publish_call import PublishCall

    PublishCall.returned = lambda self, message, reply: self.confirmed(message)


def _rabbit_nack_buries():
    from postroom.broker import Outcome, Verdict
    from postroom.brokers.rabbitmq import publish_call

    publish_call.nack = lambda message, *, flowed_on: Outcome(Verdict.REJECTED, "nack")


def _rabbit_confirmed_when_written():
    from postroom.brokers.rabbitmq.publish_call import PublishCall

    send = PublishCall._send

    async def hasty(self, channel, loop):
        written = await send(self, channel, loop)
        for message, _, _ in list(self._in_flight.values()):
            self.confirmed(message)
        return written

    PublishCall._send = hasty


def _rabbit_channel_used_again():
    from postroom.brokers.rabbitmq.publish_call import PublishCall

    PublishCall.is_clean = property(lambda self: self.error is None)


def _rabbit_exchange_unasked():
    from postroom.brokers.rabbitmq.connection import RabbitConnection

    async def none(self, exchanges):
        return {}

    RabbitConnection.missing = none


def _rabbit_suspects_among_others():
    from postroom.brokers.rabbitmq.broker import RabbitBroker
    from postroom.brokers.rabbitmq.connection import RabbitConnection

    connected, shared = RabbitBroker._connected, {}

    async def together(self, *, suspect=False):
        return await connected(self)

    async def take(self):
        if self not in shared or shared[self].is_closed:
            shared[self] = await taken(self)
        return shared[self]

    taken, RabbitConnection.take = RabbitConnection.take, take
    RabbitBroker._connected = together


def _rabbit_whole_key_in_flight():
    """All that waits is written at once, whatever its key."""
    from collections import deque

    from postroom.brokers.rabbitmq.publish_call import PublishCall

    start = PublishCall.__init__

    def all_at_once(self, batch, *rest, **more):
        start(self, batch, *rest, **more)
        self._turns = [deque([record]) for record in batch]

    def stop(self, run, outcome):
        if run:
            self._reporter.report(run.popleft(), outcome)

    PublishCall.__init__, PublishCall._stop = all_at_once, stop


def _rabbit_block_unseen():
    from postroom.brokers.rabbitmq.connection import RabbitConnection

    RabbitConnection.is_blocked = lambda self: False


def _kafka_key_by_two_sessions():
    from postroom.brokers.kafka.sessions import Sessions

    def careless(self, batch):
        found = {}
        for record in batch:
            size = self._size_for(self._settings.topic_of(record))
            found.setdefault(size, []).append(record)
        return found

    Sessions.share_out = careless


def _kafka_caution_for_all():
    from time import monotonic

    from postroom.brokers.kafka import sessions

    size_for = sessions.Sessions._size_for

    def careless(self, topic):
        if any(monotonic() < caution.until for caution in self._caution.values()):
            return sessions.ONE_BY_ONE
        return size_for(self, topic)

    sessions.Sessions._size_for = careless


def _kafka_caution_without_end():
    from math import inf

    from postroom.brokers.kafka.sessions import Caution

    Caution.again = lambda self, now: Caution(inf)


BROKER_MUTANTS = {
    "kafka-caution-for-all": Mutant(
        "P1", "a topic that refused a batch slows all others", _kafka_caution_for_all,
        tests=(f"{KAFKA_QUEUE}test_a_topic_that_refused_a_batch_slows_no_other",),
    ),
    "kafka-caution-without-end": Mutant(
        "P1", "a topic that refused one batch is served message by message for ever",
        _kafka_caution_without_end,
        tests=(f"{KAFKA_QUEUE}test_caution_grows_while_a_topic_goes_on_refusing",),
    ),
    "kafka-key-by-two-sessions": Mutant(
        "G4", "a key whose topics have different limits is sent by two sessions at once",
        _kafka_key_by_two_sessions, tests=("tests/unit/test_kafka_sessions.py",),
    ),
    "kafka-gapless-off": Mutant(
        "K1", "what follows a failed message in its partition passes it", _kafka_gapless_off,
        tests=(KAFKA + "test_nothing_passes_a_refused_message_within_its_partition",),
    ),
    "kafka-goes-on-with-a-stopped-key": Mutant(
        "B5", "the session goes on with a key of which an event was not taken",
        _kafka_goes_on_with_a_stopped_key,
        tests=(f"{KAFKA_QUEUE}test_what_follows_an_event_that_cannot_go_stays_behind_it",),
    ),
    "kafka-full-queue-overtaken": Mutant(
        "G4", "events that wait for room in the producer's queue are passed by later ones",
        _kafka_full_queue_overtaken,
        tests=(f"{KAFKA_QUEUE}test_a_full_queue_inverts_no_key_and_needs_no_new_producer",),
    ),
    "kafka-message-timeout": Mutant(
        "K1", "librdkafka gives messages up by a timer of its own", _kafka_message_timeout,
        tests=(KAFKA_LIMITS + "test_nothing_but_publish_seconds_gives_a_message_up",),
    ),
    "kafka-partitioner": Mutant(
        "K1", "keys go to other partitions than Java's", _kafka_other_partitioner,
        tests=(KAFKA + "test_partitions_are_those_of_the_java_producer",),
    ),
    "kafka-batch-outgrows": Mutant(
        "K2", "batches grow beyond what the topic takes", _kafka_batches_outgrow_the_topic,
        tests=(KAFKA + "test_a_batch_never_outgrows_the_topic",),
    ),
    "kafka-batch-buried": Mutant(
        "K3", "a refused batch is buried as a whole", _kafka_batch_buried,
        tests=(KAFKA + "test_a_refused_batch_makes_suspects_and_the_culprit_alone_is_rejected",),
    ),
    "kafka-no-purge": Mutant(
        "K3", "what was given up goes out later", _kafka_given_up_and_kept,
        tests=(KAFKA_LIMITS + "test_what_is_given_up_is_purged_and_never_goes_out_later",),
    ),
    "kafka-confirm-early": Mutant(
        "G2", "confirmed as soon as librdkafka has taken it", _kafka_confirmed_when_posted,
        tests=(KAFKA + "test_a_refused_batch_makes_suspects_and_the_culprit_alone_is_rejected",),
    ),
    "kafka-reports-by-turn": Mutant(
        "K4", "delivery reports are taken in the order of sending", _kafka_reports_by_turn,
        tests=(KAFKA + "test_a_report_is_told_by_its_place_and_not_by_its_turn",),
    ),
    "kafka-partition-unasked": Mutant(
        "P3", "nobody asks whether a partition can take messages", _kafka_partition_unasked,
        tests=("tests/unit/test_kafka_sessions.py",),
    ),
    "kafka-key-is-no-id": Mutant(
        "K7", "key=id is overheard", _kafka_key_is_no_id,
        tests=(KAFKA + "test_the_key_may_be_the_events_id",),
    ),
    "kafka-topic-unasked": Mutant(
        "K5", "nobody asks whether a topic is there", _kafka_topics_unasked,
        tests=(KAFKA + "test_an_unknown_topic_is_told_at_once_and_holds_only_its_own_keys",),
    ),
    "kafka-topics-at-once": Mutant(
        "G4", "a key's events in two topics do not wait for each other", _kafka_topics_at_once,
        tests=("tests/unit/test_kafka_publish_call.py",),
    ),
    "kafka-id-per-relay": Mutant(
        "K6", "a transactional id for each relay, not for each lane", _kafka_id_per_relay,
        tests=(KAFKA_LANES + "test_a_zombie_is_fenced",),
    ),
    "rabbit-mandatory-off": Mutant(
        "Q1", "published without `mandatory`", _rabbit_mandatory_off,
        tests=(RABBIT + "test_only_an_ack_is_a_confirm",),
    ),
    "rabbit-return-confirms": Mutant(
        "Q1", "a message that came back counts as confirmed", _rabbit_return_is_a_confirm,
        tests=(RABBIT + "test_only_an_ack_is_a_confirm",),
    ),
    "rabbit-confirm-early": Mutant(
        "G2", "confirmed as soon as it is written", _rabbit_confirmed_when_written,
        tests=(RABBIT + "test_only_an_ack_is_a_confirm",),
    ),
    "rabbit-transient": Mutant(
        "G2", "messages that are gone with the server", _rabbit_transient,
        tests=("tests/scenario/test_rabbitmq_format.py::test_properties_and_headers",),
    ),
    "rabbit-nack-buries": Mutant(
        "P2", "a full queue buries events", _rabbit_nack_buries,
        tests=(RABBIT + "test_a_nack_is_no_confirm_and_no_attempt",),
    ),
    "rabbit-channel-again": Mutant(
        "Q2", "a channel with an open question is used again", _rabbit_channel_used_again,
        tests=(RABBIT + "test_a_channel_with_an_open_question_is_not_used_again",),
    ),
    "rabbit-key-in-flight": Mutant(
        "Q3", "several events of a key are in flight", _rabbit_whole_key_in_flight,
        tests=(RABBIT + "test_nothing_of_a_key_passes_what_a_full_queue_refused",),
    ),
    "rabbit-exchange-unasked": Mutant(
        "Q4", "a missing exchange closes the channel of its neighbours", _rabbit_exchange_unasked,
        tests=(RABBIT + "test_a_missing_exchange_is_found_before_anything_is_sent",),
    ),
    "rabbit-suspects-together": Mutant(
        "P3", "a suspect is tried on the channel of others", _rabbit_suspects_among_others,
        tests=(RABBIT + "test_a_suspect_shares_its_fate_with_nobody",),
    ),
    "rabbit-block-unseen": Mutant(
        "Q4", "nobody sees that RabbitMQ has blocked the connection", _rabbit_block_unseen,
        tests=(RABBIT_OUTAGES + "test_a_memory_alarm_blocks_the_connection",),
    ),
}  # fmt: skip
