"""The receipt of a message: the place that its delivery report names."""

from __future__ import annotations

from functools import lru_cache

from confluent_kafka import Message as Delivered

from postroom.model import receipts

_TOPICS = 1_000


def receipt_of(message: Delivered) -> str:
    """Return where a confirmed message is.

    A message that was retried and found to be there already is confirmed without its offset.
    """
    place, offset = _place(message.topic() or "", message.partition()), message.offset()
    if offset is None or offset < 0:
        return place + "}"
    return f'{place},"offset":{offset}}}'


@lru_cache(_TOPICS)
def _place(topic: str, partition: int | None) -> str:
    known = {} if partition is None or partition < 0 else {"partition": partition}
    return receipts.make("kafka", topic=topic, **known)[:-1]
