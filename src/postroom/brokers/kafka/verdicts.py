"""What an error of Kafka means for an event (P2, K3)."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import KafkaError

from postroom.broker import Outcome, Verdict
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
        _E._INVALID_DIFFERENT_RECORD,
    }
)
"""The broker looked at a batch and will not have it, now or later; nothing of it was written."""

WRONG_TOPIC = frozenset(
    {
        _E.UNKNOWN_TOPIC_OR_PART,
        _E.TOPIC_EXCEPTION,
        _E.TOPIC_AUTHORIZATION_FAILED,
        _E.INVALID_REQUIRED_ACKS,
        _E.UNSUPPORTED_COMPRESSION_TYPE,
        _E._UNKNOWN_TOPIC,
        _E._UNKNOWN_PARTITION,
    }
)
"""Somebody must set something right about the topic, or about our permissions on it."""

FENCED = frozenset({_E._FENCED, _E.PRODUCER_FENCED, _E.INVALID_PRODUCER_EPOCH})
"""Another producer with the same transactional id has come."""


class Loss(NamedTuple):
    """A message without a confirm: why, and whether it may have left.

    verdict     what it means, if it was decided on this side, before the producer took it. Then
                the producer is none the worse for it
    """

    code: int
    error: str
    partition: int | None = None
    left: bool = True
    verdict: Verdict | None = None

    @property
    def harms_session(self) -> bool:
        """The producer met trouble, or may have: a new one is needed."""
        return self.verdict is None and self != NEVER_LEFT


def unwritable(error: Exception) -> Loss:
    """Return the loss of an event that no message can be made of: it can never go."""
    said = short_error(error).removeprefix("EventError: ")
    return Loss(_E._INVALID_ARG, said, left=False, verdict=Verdict.REJECTED)


def not_taken(problem: KafkaError) -> Loss:
    """Return the loss of a message that the producer itself refused, with a code."""
    verdict = Verdict.FAILED if problem.code() == _E._INVALID_ARG else None
    return Loss(problem.code(), problem.str(), left=False, verdict=verdict)


def outgrows_queue(size: int) -> Loss:
    """Return the loss of an event that the empty queue of the producer does not take."""
    said = (
        f"the producer's queue is too small for this event ({size} bytes): raise "
        "queue.buffering.max.kbytes, or leave it at its default"
    )
    return Loss(_E._QUEUE_FULL, said, left=False, verdict=Verdict.MISCONFIGURED)


NEVER_LEFT = Loss(_E._STATE, "held back: an earlier event of its key was not confirmed", left=False)
NO_REPORT = Loss(_E._PURGE_INFLIGHT, "no delivery report arrived")


def in_a_batch(loss: Loss, unreachable: str = "", unavailable_partitions: str = "") -> Outcome:
    """Judge the first event of a key that was not confirmed, sent together with others.

    away    why the cluster gives no answer to anything, if it does not
    ailing  what is wrong with its partition, while the cluster answers
    """
    if loss.verdict is not None:
        return Outcome(loss.verdict, loss.error)
    if loss.code in WRONG_TOPIC:
        return Outcome(Verdict.MISCONFIGURED, loss.error)
    if loss.code in REFUSED:  # perhaps for a neighbour's sake: it is tried alone
        return Outcome(Verdict.UNKNOWN, loss.error)
    if unreachable and loss.code != _E._PURGE_INFLIGHT:
        return Outcome(Verdict.OUTAGE, unreachable)
    if not loss.left:
        return Outcome(Verdict.UNSENT, loss.error)
    if unavailable_partitions:
        return Outcome(Verdict.MISCONFIGURED, unavailable_partitions)
    # `Purged in queue` is no proof that it never left: what was in flight when a connection broke
    # stands in the queue again.
    return Outcome(Verdict.UNKNOWN, loss.error)


def alone(loss: Loss, unreachable: str = "", unavailable_partitions: str = "") -> Outcome:
    """Judge an event that shared its batch with no other: what the broker refuses is its fault."""
    if loss.verdict is not None:
        return Outcome(loss.verdict, loss.error)
    if loss.code in REFUSED:
        return Outcome(Verdict.REJECTED, loss.error)
    if unreachable:
        return Outcome(Verdict.OUTAGE, unreachable)
    return in_a_batch(loss, unavailable_partitions=unavailable_partitions)
