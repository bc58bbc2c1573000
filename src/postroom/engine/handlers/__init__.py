"""Handlers: functions of this process, as the destination of a relay or behind a consumer.

handlers      the registry, and the broker that a relay publishes to
key_batches   chooses the events that may run now, alone or in one transaction
limiter       bounds how many run side by side; `threads` runs sync functions
runs          one event: transaction, inbox row, handler, check, commit; `batch_runs`: several
commit_check  asks the database before the commit whether the inbox row is in it
high_water    strict keys: the highest number that took effect
"""

from postroom.engine.handlers.handlers import Handlers

__all__ = ["Handlers"]
