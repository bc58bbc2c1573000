"""MongoDB: alone, as a replica set of one, and as a replica set of three."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.servers import programs
from tests.servers.cluster import Cluster
from tests.servers.process import Server, free_port

REPLICA_SET = "rs0"
# Quick to notice that a member has gone, and quick to elect another.
ELECTION = {"electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 500}


class Mongo(Server):
    """One MongoDB process: a replica set of one, or with `replica_set=None` a standalone."""

    name = "mongo"

    def __init__(self, *, replica_set: str | None = REPLICA_SET, **options: Any) -> None:
        super().__init__(**options)
        self.replica_set = replica_set
        self.port = free_port()

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        options = f"?replicaSet={self.replica_set}" if self.replica_set else ""
        return f"mongodb://{self.address}/postroom{options}"

    def prepare(self) -> None:
        (self.folder / "data").mkdir()

    def command(self) -> Sequence[str | Path]:
        server: list[str | Path] = [programs.mongod(), "--dbpath", self.folder / "data"]
        server += ["--bind_ip", "127.0.0.1", "--port", str(self.port), "--nounixsocket"]
        server += ["--wiredTigerCacheSizeGB", "0.25"]
        server += ["--replSet", self.replica_set] if self.replica_set else []
        return server

    def answers(self) -> bool:
        if self.replica_set:
            initiate(self.replica_set, [self.address])
        return writes(self.url)


class Member(Mongo):
    """One of three: it is ready when it answers; the cluster says when the set is."""

    def answers(self) -> bool:
        return answers(self.address)


class MongoCluster(Cluster):
    """A replica set of three that elects a new primary within a few seconds."""

    def __init__(self, **options: Any) -> None:
        self.members = [Member(**options) for _ in range(3)]
        super().__init__(self.members)

    @property
    def url(self) -> str:
        addresses = ",".join(member.address for member in self.members)
        return f"mongodb://{addresses}/postroom?replicaSet={REPLICA_SET}"

    def leader(self) -> Member:
        """The primary."""
        with connect(self.url) as client:
            address = client.admin.command("hello")["primary"]
        return next(member for member in self.members if member.address == address)

    def wait_ready(self) -> None:
        super().wait_ready()
        self.members[0].wait_for(self.is_whole, "the replica set")

    def is_whole(self) -> bool:
        """Say whether a majority confirms a write and all three members are up."""
        initiate(REPLICA_SET, [member.address for member in self.members])
        return writes(self.url) and states(self.url) == ["PRIMARY", "SECONDARY", "SECONDARY"]


def connect(url: str) -> Any:
    """Open a client that gives up soon."""
    import pymongo

    return pymongo.MongoClient(url, serverSelectionTimeoutMS=2000, connectTimeoutMS=2000)


def answers(address: str) -> bool:
    """Say whether the server at this address answers a ping."""
    with connect(f"mongodb://{address}/?directConnection=true") as client:
        return bool(client.admin.command("ping")["ok"])


def initiate(replica_set: str, addresses: Sequence[str]) -> None:
    """Make a replica set of these members, unless it is one already."""
    from pymongo.errors import OperationFailure

    already_initialized = 23
    members = [{"_id": number, "host": address} for number, address in enumerate(addresses)]
    config = {"_id": replica_set, "members": members, "settings": ELECTION}
    with connect(f"mongodb://{addresses[0]}/?directConnection=true") as client:
        try:
            client.admin.command("replSetInitiate", config)
        except OperationFailure as error:
            if error.code != already_initialized:
                raise


def writes(url: str) -> bool:
    """Say whether a write is confirmed by a majority."""
    from pymongo import WriteConcern

    concern = WriteConcern(w="majority", wtimeout=2000)
    with connect(url) as client:
        probe = client.get_database("postroom_probe").get_collection("probe", write_concern=concern)
        return bool(probe.replace_one({"_id": 1}, {}, upsert=True).acknowledged)


def states(url: str) -> list[str]:
    """List the states of a replica set's members, sorted."""
    with connect(url) as client:
        status = client.admin.command("replSetGetStatus")
    return sorted(member["stateStr"] for member in status["members"])
