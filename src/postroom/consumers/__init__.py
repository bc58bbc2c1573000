"""From brokers to handlers, through the inbox."""

from postroom.consumers.consumer import Consumer
from postroom.consumers.settings import ConsumerSettings
from postroom.consumers.trial import ConsumerCounts

__all__ = ["Consumer", "ConsumerCounts", "ConsumerSettings"]
