"""The demo: a shop, relays of which one is killed, a receiver, and an independent checker.

Each runs in a separate process; `__main__` is the entry point. An order passes them in this order:

shop       changes orders and adds events, as the code of a service does
wire       a broker over TCP, as a plug-in would be written; the relays publish to it
receiver   another service with an inbox in its own database
checker    compares the business tables of both; it knows nothing of the outbox

stage      starts the processes, kills the first relay at the worst moment, and ends them all
crew       the processes as the stage sees them; `lifeline` ends them when the stage is gone
screen     prints progress

faults     another shop, with faults to look at on the dashboard
"""
