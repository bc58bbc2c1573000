"""The three engines: `relay`, `handlers` and `consumer`.

relay      reads events from a store, publishes them to a broker or to handlers, and settles them
handlers   runs functions of this process in database transactions; a broker to the relay
consumer   reads messages from a source and runs handlers through the inbox

An event that leaves passes the relay; one that arrives passes the consumer, then the handlers. The
engines import in this order: consumer, handlers, relay. They share the modules of this package:

lifecycle       start, stop, kill, wait and run; a service that crashes stops the whole
service         a background loop that can be started and stopped, each more than once
runner          runs several relays and consumers in one process until a signal stops them
sharing         opens a store or broker once for several users; the last user closes it
lock_retries    repeats an operator's command that met locks of another transaction
handler_sets    notices live relays and consumers of one name whose handlers differ
store_calls     reports calls to the store that fail, and that they work again
fact_log        logs facts as lines of key=value pairs; `log_limits` decides which are left out
summaries       reports once a minute what was done
operations      runs stored work on many events in steps, in any process
controls        reads the pauses that operators set, once a second
breaker         circuit breaker: pauses publishing while the destination is unreachable
failure_policy  decides whether a failed event is retried, isolated, released or buried
"""
