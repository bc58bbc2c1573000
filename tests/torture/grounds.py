"""Where cells take place: real servers, and wires between them and the relays that can be cut."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.servers.catalog import SERVERS
from tests.servers.proxy import Proxy
from tests.torture.cell import Ground
from tests.torture.taps import HandlersTap, KafkaTap, RabbitTap

STORES = ("sqlite", "postgres", "postgres18", "mariadb", "mongo", "mongo_cluster")
BROKERS = ("handlers", "kafka", "kafka_cluster", "rabbitmq")
SECRET = "canary-7391"


@contextmanager
def ground(store, broker):
    """Start what a pair needs; it is gone afterwards."""
    with ExitStack() as stack:
        start = lambda name: stack.enter_context(SERVERS[name].make())  # noqa: E731
        made = _store(stack, store, start)
        yield _broker(stack, broker, start, made)


def _store(stack, name, start):
    if name == "sqlite":
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="postroom-torture-"))
        url = f"sqlite:///{Path(folder) / 'app.db'}"
        return {"store_url": url, "relay_store_url": url}
    server = start(name)
    if name.startswith("mongo"):  # its drivers ask the servers for their own addresses
        return {"store_url": server.url, "relay_store_url": server.url, "store": server}
    wire = stack.enter_context(Proxy(urlsplit(server.url).port))
    found = {"store_url": server.url, "store": server, "store_wire": wire}
    relay_url = wire.url_for(server.url)
    if name.startswith("postgres"):  # it trusts us, whatever the password
        relay_url = relay_url.replace("postgres@", f"postgres:{SECRET}@")
        found["secret"] = SECRET
    return {**found, "relay_store_url": relay_url}


def _broker(stack, name, start, made):
    if name == "handlers":
        return Ground(**made, tap=HandlersTap(), relay_broker_url=HandlersTap.url)
    server = start(name)
    if name.startswith("kafka"):
        tap = KafkaTap(server.url, replicas=3 if name == "kafka_cluster" else 1)
        return Ground(**made, tap=tap, relay_broker_url=tap.url, broker=server)
    wire = stack.enter_context(Proxy(urlsplit(server.url).port))
    tap = RabbitTap(server.url)
    through = f"{wire.url_for(server.url)}?{tap.options}"
    return Ground(**made, tap=tap, relay_broker_url=through, broker=server, broker_wire=wire)
