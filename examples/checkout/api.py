"""The checkout API: `POST /checkout` writes an order and its event in one transaction.

It answers 201 as soon as MongoDB has committed, whether Kafka is reachable or not.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from pymongo import MongoClient

from postroom import Event, SyncOutbox

outbox = SyncOutbox()


def checkout(client: MongoClient[Any], topic: str, basket: dict[str, Any]) -> str:
    """Save an order and its event: both are committed, or neither is. Returns the event's id."""
    event = Event(
        "checkout.completed",
        basket,
        topic=topic,
        aggregate_type="order",
        aggregate_id=basket["order"],
    )
    orders = client.get_default_database()["orders"]
    with client.start_session() as session, outbox.transaction(session):
        orders.insert_one({"_id": basket["order"], **basket}, session=session)
        outbox.add(session, event)
    return event.id


class Api(ThreadingHTTPServer):
    """The HTTP server, with the client that its requests share."""

    def __init__(self, client: MongoClient[Any], topic: str) -> None:
        super().__init__(("127.0.0.1", 0), Checkout)
        self.client = client
        self.topic = topic


class Checkout(BaseHTTPRequestHandler):
    """Handles one request."""

    def do_POST(self) -> None:
        """Check out a basket."""
        if self.path != "/checkout":
            self.send_error(404)
            return
        basket = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        api = cast("Api", self.server)
        event_id = checkout(api.client, api.topic, basket)
        body = json.dumps({"event_id": event_id}).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, form: str, *parts: object) -> None:
        """Log nothing: the scenario prints its own lines."""


@contextmanager
def serving(mongo_url: str, topic: str) -> Iterator[str]:
    """Serve on a free port; yields the address."""
    with MongoClient(mongo_url) as client, Api(client, topic) as api:
        thread = threading.Thread(target=api.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{api.server_port}"
        finally:
            api.shutdown()
            thread.join()
