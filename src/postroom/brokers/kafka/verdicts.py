"""Translates Kafka's errors into outcomes of events (P2, K3)."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import KafkaError

from postroom.broker import Outcome, Verdict
from postroom.brokers.kafka import error_codes
from postroom.brokers.kafka.partitions import NoPartitionError
from postroom.record import short_error

_E = KafkaError

REFUSED = frozenset(
    {
        _E.MSG_SIZE_TOO_LARGE,
        _E.RECORD_LIST_TOO_LARGE,
        _E.INVALID_RECORD,
        _E.INVALID_TIMESTAMP,
        _E.POLICY_VIOLATION,
        _E.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        error_codes.INVALID_DIFFERENT_RECORD,
    }
)
"""The broker permanently refuses a batch; nothing of it was written."""

WRONG_TOPIC = frozenset(
    {
        _E.UNKNOWN_TOPIC_OR_PART,
        _E.TOPIC_EXCEPTION,
        _E.TOPIC_AUTHORIZATION_FAILED,
        _E.INVALID_REQUIRED_ACKS,
        _E.UNSUPPORTED_COMPRESSION_TYPE,
        error_codes.UNKNOWN_TOPIC,
        error_codes.UNKNOWN_PARTITION,
    }
)
"""The topic, or this user's permissions on it, must be corrected."""

FENCED = frozenset({error_codes.FENCED, _E.PRODUCER_FENCED, _E.INVALID_PRODUCER_EPOCH})
"""Another producer with the same transactional id has started."""


class Loss(NamedTuple):
    """An unconfirmed message: why, and whether it may have been sent.

    verdict     the outcome, if it was decided here, before the producer accepted it. Then
                the producer can still be used
    """

    code: int
    error: str
    partition: int | None = None
    left: bool = True
    verdict: Verdict | None = None

    @property
    def harms_session(self) -> bool:
        """The producer met an error, or may have: a new one is needed."""
        return self.verdict is None and self != NEVER_LEFT


def unwritable(error: Exception) -> Loss:
    """Return the loss of an event that cannot be encoded as a message: it can never be sent."""
    if isinstance(error, NoPartitionError):
        return Loss(
            error_codes.UNKNOWN_PARTITION, str(error), left=False, verdict=Verdict.MISCONFIGURED
        )
    said = short_error(error).removeprefix("EventError: ")
    return Loss(error_codes.INVALID_ARG, said, left=False, verdict=Verdict.REJECTED)


def not_taken(problem: KafkaError) -> Loss:
    """Return the loss of a message that the producer itself refused, with a code."""
    verdict = Verdict.FAILED if problem.code() == error_codes.INVALID_ARG else None
    return Loss(problem.code(), problem.str(), left=False, verdict=verdict)


def outgrows_queue(size: int) -> Loss:
    """Return the loss of an event that does not fit into the producer's empty queue."""
    said = (
        f"the producer's queue is too small for this event ({size} bytes): raise "
        "queue.buffering.max.kbytes, or leave it at its default"
    )
    return Loss(error_codes.QUEUE_FULL, said, left=False, verdict=Verdict.MISCONFIGURED)


NEVER_LEFT = Loss(
    error_codes.STATE, "held back: an earlier event of its key was not confirmed", left=False
)
NO_REPORT = Loss(error_codes.PURGE_INFLIGHT, "no delivery report arrived")


def in_a_batch(loss: Loss, unreachable: str = "", unavailable_partitions: str = "") -> Outcome:
    """Decide about the first unconfirmed event of a key, sent together with others.

    unreachable             why the cluster does not answer at all, if so
    unavailable_partitions  the problem of its partition, while the cluster answers
    """
    if loss.verdict is not None:
        return Outcome(loss.verdict, loss.error, local=True)
    if loss.code in WRONG_TOPIC:
        return Outcome(Verdict.MISCONFIGURED, loss.error)
    if loss.code in REFUSED:  # possibly because of another message: it is tried alone
        return Outcome(Verdict.UNKNOWN, loss.error)
    if unreachable and loss.code != error_codes.PURGE_INFLIGHT:
        return Outcome(Verdict.OUTAGE, unreachable)
    if not loss.left:
        return Outcome(Verdict.UNSENT, loss.error)
    if unavailable_partitions:
        return Outcome(Verdict.MISCONFIGURED, unavailable_partitions)
    # `Purged in queue` does not prove that it was never sent: messages that were in flight when a
    # connection broke are in the queue again.
    return Outcome(Verdict.UNKNOWN, loss.error)


def alone(loss: Loss, unreachable: str = "", unavailable_partitions: str = "") -> Outcome:
    """Decide about an event that was alone in its batch: if the broker refuses it, it is
    the cause.
    """
    if loss.verdict is not None:
        return Outcome(loss.verdict, loss.error, local=True)
    if loss.code in REFUSED:
        return Outcome(Verdict.REJECTED, loss.error)
    if unreachable:
        return Outcome(Verdict.OUTAGE, unreachable)
    return in_a_batch(loss, unavailable_partitions=unavailable_partitions)
