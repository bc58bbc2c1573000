"""What can happen to a replica set of three, with real elections, and how it is made whole again.

On a busy machine a member that is alive may be taken for dead: there may be an election that nobody
asked for, no primary for a while, or a primary whose members lag. So whatever is done to a primary
is done until it has been done to one, and no limit here is more than patience.
"""

from __future__ import annotations

import pymongo
from pymongo.errors import AutoReconnect

from tests.servers.mongo import states
from tests.servers.process import wait_until

FAST = "serverSelectionTimeoutMS=5000&socketTimeoutMS=4000&connectTimeoutMS=4000"
"""Limits by which a frozen server is noticed, but not one that is only slow."""

PATIENCE = 120


def primary_of(cluster):
    found = []

    def look():
        with pymongo.MongoClient(cluster.url, serverSelectionTimeoutMS=20_000) as client:
            port = int(client.admin.command("hello")["primary"].rpartition(":")[2])
        found.append(next(member for member in cluster.members if member.port == port))
        return True

    wait_until(look, within=PATIENCE, what="a primary")
    return found[-1]


def step_down(cluster):
    """Let the primary step down; it refuses while no other has caught up."""

    def ask():
        with pymongo.MongoClient(cluster.url, serverSelectionTimeoutMS=20_000) as client:
            try:
                client.admin.command("replSetStepDown", 10)
            except AutoReconnect as error:  # it may hang up on everybody when it has done so
                return "not primary" not in str(error)
        return True

    wait_until(ask, within=PATIENCE, what="a primary that steps down")


def kill_primary(cluster):
    primary_of(cluster).kill()


def freeze_primary(cluster):
    primary_of(cluster).freeze()


def freeze_secondary(cluster):
    """Two of three are a majority; the third lags behind for as long as it takes."""
    primary = primary_of(cluster)
    next(member for member in cluster.members if member is not primary).freeze()


def make_whole(cluster):
    for member in cluster.members:
        if not member.pids:
            member.restart()
        member.thaw()
    wait_until(
        lambda: states(cluster.url) == ["PRIMARY", "SECONDARY", "SECONDARY"],
        within=PATIENCE,
        what="three members",
    )
