"""Bugs of a first RabbitMQ consumer, and of how a publisher reads answers."""

from tests.mutants.mutant import Mutant

CONTENT = "tests/unit/test_rabbitmq_content.py"
OUTLIVE = "test_attempts_outlive_a_lost_connection"
CRASHES = "test_a_consumer_that_crashes_again_and_again_loses_nothing"
SOURCE = "tests/unit/test_rabbitmq_source.py"
CALL = "tests/unit/test_rabbitmq_publish_call.py::"
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


def _acks_left_behind():
    from postroom.sources.rabbitmq.source import _Session

    end = _Session.end

    async def at_once(self, *, flush):
        acking, self._acking = self._acking, None
        await end(self, flush=flush)
        if acking is not None:
            acking.cancel()

    _Session.end = at_once


def _cancel_unnoticed():
    from postroom.sources.rabbitmq.source import _Session

    begin = _Session.begin

    async def without_a_tag(self, queue):
        await begin(self, queue)
        self._tag = None

    _Session.begin = without_a_tag


def _properties_first():
    from postroom.model.envelope import ID, TYPE
    from postroom.sources.rabbitmq import message as module

    read = module.with_properties

    def properties_win(message, names, *, message_id, kind, **more):
        found = read(message, names, message_id=message_id, kind=kind, **more)
        said = {name: value for name, value in ((ID, message_id), (TYPE, kind)) if value}
        return found._replace(headers={**found.headers, **said})

    module.with_properties = properties_win


def _last_nack_counts():
    from postroom.brokers.rabbitmq.publish_call import PublishCall

    end = PublishCall._end

    def nothing_after(self):
        if self._nacked and self._last_confirmed < max(n for _, n in self._nacked):
            self._last_confirmed = -1
        end(self)

    PublishCall._end = nothing_after


def _suspect_unasked():
    from postroom.brokers.rabbitmq.broker import RabbitBroker

    resolve = RabbitBroker._resolve

    class Unasked:
        async def ready(self):
            pass

    async def blamed(self, record, call, link, unknown):
        return await resolve(self, record, call, Unasked(), unknown)

    RabbitBroker._resolve = blamed


RABBIT_CONSUMER_MUTANTS = {
    "rabbit-last-nack-counts": Mutant(
        "P2", "a nack behind all confirmed messages is an outage", _last_nack_counts,
        tests=(f"{CALL}test_nacks_around_a_message_that_is_taken_are_no_outage",),
    ),
    "rabbit-suspect-unasked": Mutant(
        "P2", "a suspect without a confirm is blamed on its queue while RabbitMQ hangs",
        _suspect_unasked,
        tests=(f"{CALL}test_a_suspect_without_a_confirm_waits_only_if_rabbitmq_responds",),
    ),
    "in-rabbit-acks-left-behind": Mutant(
        "G6", "a consumer closes its channel before the last acks are sent", _acks_left_behind,
        tests=(f"{SOURCE}::test_the_acks_of_finished_messages_go_before_the_channel_is_closed",),
    ),
    "in-rabbit-cancel-unnoticed": Mutant(
        "F2", "a consumer that RabbitMQ has cancelled waits for ever", _cancel_unnoticed,
        tests=(f"{SOURCE}::test_a_consumer_that_rabbitmq_has_cancelled_is_noticed",),
    ),
    "in-rabbit-properties-first": Mutant(
        "G6", "the id that a library gives each delivery hides the sender's", _properties_first,
        tests=(f"{CONTENT}::test_headers_take_precedence_over_properties",),
    ),
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
