"""The contract of a Source, tested through a whole consumer.

suite     ConsumerContract: effects once, order, dead letters, redelivery
batches   messages that share a transaction
tools     a store with effects, handlers and consumers on a wire to the broker
"""

from postroom.testing.consumer.suite import ConsumerContract
from postroom.testing.consumer.tools import ConsumerWire, Sent

__all__ = ["ConsumerContract", "ConsumerWire", "Sent"]
