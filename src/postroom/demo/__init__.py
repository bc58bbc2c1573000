"""The demo: a shop, a relay that is killed, a receiver, and a checker that trusts none of them.

Each is a process of its own. `shop.py` is what a service's code looks like, `wire.py` how a broker
is written, `receiver.py` how an inbox is used; `stage.py` starts, kills and ends them all.
"""
