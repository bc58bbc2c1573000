"""The consumer: from a source, through the inbox, to handlers.

`consumer` receives messages from its source; `context` holds the state that the parts share. In
direct mode a message passes them in this order:

size_limit     replaces the body of a message that is too large; it becomes a dead letter
messages       turns a source's message into a record. `hashed_ids` warns of messages without an id
key_queues     one queue for each key; keys are handled concurrently, a key in its order
processor      runs the handlers of one message and acknowledges it; retries it in place
batches        lets messages of different keys share a transaction
attempts       remembers the attempts of messages that the broker delivers again

durable_inbox  in durable mode: stores messages, acknowledges them, and has a relay handle them;
               in both modes it holds the dead letters. `detours` uses it for keys that fail while
               many of their messages wait

`dedup_window` warns if inbox rows are deleted before the broker stops redelivering.
"""

from postroom.engine.consumer.consumer import Consumer
from postroom.engine.consumer.context import ConsumerCounts

__all__ = ["Consumer", "ConsumerCounts"]
