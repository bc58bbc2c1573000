"""Brokers: where relays publish. Each passes `postroom.testing.broker.BrokerContract`."""

from postroom.brokers.memory import MemoryBroker, Message, NullBroker

__all__ = ["MemoryBroker", "Message", "NullBroker"]
