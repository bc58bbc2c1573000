"""Where cells take place: real servers, and wires between them and the relays that can be cut."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.servers.catalog import SERVERS
from tests.servers.proxy import Proxy
from tests.torture.disks import small_disk
from tests.torture.mongo_world import add_user
from tests.torture.taps import HandlersTap, KafkaTap, RabbitTap
from tests.torture.worlds import SECRET

STORES = ("sqlite", "postgres", "mariadb", "mongo")
BROKERS = ("handlers", "kafka", "rabbitmq")
USER = "torture"


@dataclass
class Ground:
    """Where a cell takes place: addresses, servers that can be harmed, wires that can be cut.

    store_url           straight to the database, for nemesis and checker
    relay_store_url     as relays and consumers have it: by the wire, under their own `{name}`
    producer_store_url  as producers have it: by the wire, too
    """

    store_url: str
    relay_store_url: str
    producer_store_url: str
    tap: object
    relay_broker_url: str
    source_url: str | None = None
    store: object = None
    broker: object = None
    store_wire: object = None
    broker_wire: object = None
    disk: object = None

    @property
    def foreign_url(self):
        """Where others send to: straight to the broker."""
        return getattr(self.tap, "url", "")

    @property
    def wires(self):
        names = {"store": self.store_wire, "broker": self.broker_wire}
        return [name for name, wire in names.items() if wire is not None]

    @property
    def places(self):
        """What each kind of process is told."""
        found = {"relay": (self.relay_store_url, self.relay_broker_url)}
        if self.source_url is not None:
            found["consumer"] = (self.source_url, self.relay_store_url)
        return found


@contextmanager
def ground(store, broker):
    """Start what a pair needs; it is gone afterwards."""
    with ExitStack() as stack:
        yield Ground(**_store(stack, store), **_broker(stack, broker))


def _store(stack, name):
    disk = stack.enter_context(small_disk())
    if name == "sqlite":
        on = disk and disk.path
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="postroom-", dir=on))
        url = f"sqlite:///{Path(folder) / 'app.db'}"
        return {
            "store_url": url, "relay_store_url": url, "producer_store_url": url, "disk": disk,
        }  # fmt: skip
    options = {} if disk is None else {"under": disk.path}
    server = stack.enter_context(SERVERS[name].make(**options))
    found = {"store_url": server.url, "store": server, "disk": disk}
    if name == "mongo_cluster":  # its drivers ask the servers for their own addresses
        return {
            **found, "relay_store_url": server.url, "producer_store_url": server.url,
            "disk": None,  # there is one disk for all of them
        }  # fmt: skip
    wire = stack.enter_context(Proxy(urlsplit(server.url).port))
    url = wire.url_for(server.url)
    found |= {"store_wire": wire, "producer_store_url": url}
    if name == "mongo":
        add_user(server.url, USER, SECRET)
        place = url.partition("?")[0]
        secret_place = place.replace("://", f"://{USER}:{SECRET}@")
        relay_url = f"{secret_place}?directConnection=true&authSource=admin"
        return {
            **found, "relay_store_url": relay_url,
            "producer_store_url": f"{place}?directConnection=true",
        }  # fmt: skip
    if name.startswith("postgres"):  # it trusts us, whatever the password
        relay_url = url.replace("postgres@", f"postgres:{SECRET}@") + "?application_name={name}"
    else:
        relay_url = url.replace("root@", "{name}:" + f"{SECRET}@")
    return {**found, "relay_store_url": relay_url}


def _broker(stack, name):
    if name == "handlers":
        return {"tap": HandlersTap(), "relay_broker_url": HandlersTap.url}
    disk = stack.enter_context(small_disk())
    options = {} if disk is None else {"under": disk.path}
    if name == "rabbitmq":
        # A classic queue with one active consumer may crash when that one leaves, and come back.
        # Before it does, RabbitMQ 3.10 writes all of its messages into the log: for minutes.
        options["log_level"] = "critical"
    server = SERVERS[name].make(**options)
    if name == "rabbitmq":
        stack.enter_context(server)
        wire = stack.enter_context(Proxy(server.port))
        tap = RabbitTap(server.url)
        server.ctl("add_user", USER, SECRET)
        server.ctl("set_permissions", USER, ".*", ".*", ".*")
        url = wire.url_for(server.url).replace("guest:guest", f"{USER}:{SECRET}")
        return {
            "tap": tap, "relay_broker_url": f"{url}?{tap.destination}",
            "source_url": f"{url}?{tap.source}", "broker": server, "broker_wire": wire,
        }  # fmt: skip
    wire = None
    if name == "kafka":  # clients use the address that the broker tells them
        wire = stack.enter_context(Proxy(server.port))
        server.advertise = wire.port
    stack.enter_context(server)
    url = server.url if wire is None else f"kafka://127.0.0.1:{wire.port}"
    tap = KafkaTap(url, replicas=3 if name == "kafka_cluster" else 1)
    return {
        "tap": tap, "relay_broker_url": url, "source_url": f"{url}?{tap.source}",
        "broker": server, "broker_wire": wire,
    }  # fmt: skip
