"""What can happen to a replica set of three, with real elections, and how it is made whole again."""

from __future__ import annotations

import pymongo

from tests.servers.mongo import states
from tests.servers.process import wait_until

FAST = "serverSelectionTimeoutMS=3000&socketTimeoutMS=2000&connectTimeoutMS=2000"


def primary_of(cluster):
    with pymongo.MongoClient(cluster.url, serverSelectionTimeoutMS=20_000) as client:
        client.admin.command("ping")
        port = client.primary[1]
    return next(member for member in cluster.members if member.port == port)


def step_down(cluster):
    with pymongo.MongoClient(cluster.url, serverSelectionTimeoutMS=20_000) as client:
        client.admin.command("replSetStepDown", 10)


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
        within=60,
        what="three members",
    )
