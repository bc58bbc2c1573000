"""Destinations: each is a Broker, and passes `postroom.testing.broker.BrokerContract`."""

from postroom.brokers.handlers import Handlers
from postroom.brokers.memory import MemoryBroker, Message, NullBroker

__all__ = ["Handlers", "MemoryBroker", "Message", "NullBroker"]
