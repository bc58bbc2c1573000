"""The settings of a RabbitMQ source, from its URL and from Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from postroom.brokers.rabbitmq.settings import RabbitSettings
from postroom.errors import ConfigError
from postroom.model.foreign_messages import Names
from postroom.model.option_reader import Readers, read_options, readers
from postroom.model.url import Url

_OF_LINK = (
    "exchange",
    "exchange_type",
    "declare",
    "queue_type",
    "single",
    "bindings",
    "connect_seconds",
    "heartbeat_seconds",
    "cafile",
    "certfile",
    "keyfile",
    "verify",
)
"""The settings that a source shares with a destination: connecting and declaring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitSourceSettings:
    """Which queue is consumed, and how.

    queue       the queue
    prefetch    maximum number of unacknowledged messages
    id_header, type_header    headers that hold the id and type in messages of foreign senders
    link        how to connect, and what to declare: exchange, bindings, declare, certificates
    """

    queue: str
    prefetch: int = 200
    id_header: str = ""
    type_header: str = ""
    link: RabbitSettings

    @property
    def names(self) -> Names:
        return Names(self.id_header, self.type_header)

    def __post_init__(self) -> None:
        if not self.queue:
            raise ConfigError("queue is missing, as in amqp://host/vhost?queue=payments")
        if not 0 < self.prefetch < 65_536:
            raise ConfigError(f"prefetch must be a number from 1 to 65535, not {self.prefetch!r}")


_OWN = readers(RabbitSourceSettings, skip=("link",))
_READERS: Readers = {
    **_OWN, **{name: reader for name, reader in readers(RabbitSettings).items() if name in _OF_LINK}
}  # fmt: skip


def read_settings(url: Url, given: Mapping[str, Any]) -> RabbitSourceSettings:
    """Return the settings from the URL and from Python."""
    if url.scheme not in ("amqp", "amqps"):
        raise ConfigError(f"a RabbitMQ URL begins with amqp:// or amqps://, not {url.scheme}:")
    found = read_options(url, _READERS, given)
    own = {name: found.pop(name) for name in _OWN if name in found}
    queue = own.pop("queue", "")
    link = RabbitSettings(queue=queue or None, **found)
    return RabbitSourceSettings(queue=queue, link=link, **own)
