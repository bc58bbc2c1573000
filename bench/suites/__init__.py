"""The suites of the front: each module has PARTS, from a part's name to what measures it.

A part is given the yard and returns results. It is the smallest thing that is repeated or resumed.
"""

from importlib import import_module

SUITES = ("add", "relay", "handlers", "consume", "latency", "growth", "peers", "limits")


def parts(suite):
    """Return the parts of a suite by name; its drivers are imported only now."""
    return import_module(f"bench.suites.{suite}").PARTS
