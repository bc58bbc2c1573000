"""The three engines over one life cycle: `relay`, `handlers` and `consumer`.

relay      reads events from a store, publishes them to a broker or to handlers, and settles them
handlers   runs functions of this process inside of transactions: the broker that needs no server
consumer   reads messages from a source, and runs handlers through an inbox

This package holds what they share: services (`service`), the circuit breaker (`breaker`), the
policy for failed events (`failure_policy`), growing `pauses`, stores and brokers used by several of
them (`sharing`), and a `runner` for several of them in one process.
"""
