"""The consumer: from a source, through the inbox, to handlers.

messages       turns a source's message into a record
key_queues     one queue for each key, keys side by side; `batches` share one transaction
processor      runs the handlers of one message, and acknowledges it
durable_inbox  stores messages before they are handled; `detours` does so for hot keys
size_limit     messages that are too large become dead letters
"""

from postroom.engine.consumer.consumer import Consumer
from postroom.engine.consumer.context import ConsumerCounts

__all__ = ["Consumer", "ConsumerCounts"]
