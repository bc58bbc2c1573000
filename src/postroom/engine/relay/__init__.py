"""The relay: from the outbox to a broker.

The parts, in the order in which an event meets them:

heartbeat      keeps the relay's leases and takes free lanes; `lanes` decides which
stager         moves due events to the stage that is read; `watcher` wakes the relay after a commit
worker         reads a batch, publishes it, and settles the outcomes; `lane_groups` says which
               worker serves which lane, `pacing` how much is read
in_flight      keeps account of each key between read and settle; `suspects` are tried one at a time
settler        writes outcomes, and isolates what the store refuses
block_repair   repairs blocks; `pruner` deletes done events
"""

from postroom.engine.relay.relay import Relay

__all__ = ["Relay"]
