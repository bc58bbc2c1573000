"""The contract of a Source, behind a consumer."""

from postroom.testing.consumer.suite import ConsumerContract
from postroom.testing.consumer.tools import ConsumerWire, Sent

__all__ = ["ConsumerContract", "ConsumerWire", "Sent"]
