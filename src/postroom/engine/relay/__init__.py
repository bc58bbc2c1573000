"""The relay: from the outbox to a broker.

`relay` builds the parts below and starts and stops them; `context` holds the state that they
share. An event passes them in this order:

heartbeat     renews the relay's leases and takes free lanes; `lanes` decides which
stager        makes due events readable; `watcher` wakes the relay after a commit elsewhere
worker        reads a batch, publishes it, and settles the outcomes. `lane_groups` assigns lanes to
              workers, `pacing` decides how much is read and when
in_flight     tracks each key between read and settle (`key_run`); decides what is settled
              and what is retried. `pending_settle` is one settle that is about to be written
suspects      publishes events of unknown outcome one at a time
settler       writes the outcomes (`pending_settle`); isolates a locked lane, or an event whose
              outcome is refused
witnesses     earlier effects that a settle checks, to notice that the database has lost commits
paused        what operators have paused; `held_back` lets events of a paused topic wait, and
              `held_events` makes them due when it is resumed
limits        how fast operators let a stream or a topic be sent, and how many at a time

prober        finds out that a wrong configuration was corrected, and frees the events that waited

Beside them, `block_repair` repairs blocked keys, `pruner` deletes old events that are over, and
`inbox_pruner` deletes inbox rows of handlers that are older than the deduplication window.
"""

from postroom.engine.relay.relay import Relay

__all__ = ["Relay"]
