"""Sources: the queues and topics that consumers receive from, behind the port `postroom.source`.

kafka      topics, as a member of a consumer group
rabbitmq   one queue, with manual acknowledgements
memory     a queue in this process, for tests and examples

The consumer calls `receive()`, handles the messages, and calls `ack()` on each delivery after its
effect is committed; the source passes acknowledgements on to the broker. A message without an
`ack` is delivered again. Every source passes `postroom.testing.consumer.ConsumerContract`.
"""

from postroom.sources.memory import MemorySource

__all__ = ["MemorySource"]
