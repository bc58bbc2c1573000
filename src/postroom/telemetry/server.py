"""/metrics, /livez and /readyz over HTTP, from threads: they answer while the event loop is stuck.

Any client that reaches the port can open connections and stay silent. The number of connections is
therefore limited, each has a time limit, and at the limit the oldest connection is closed in favour
of the newest, so that probes are always answered.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app
from prometheus_client.registry import CollectorRegistry

from postroom.errors import ConfigError
from postroom.telemetry.health import Answer, Health

MAX_CONNECTIONS = 32
CONNECTION_SECONDS = 10.0  # from accept to the last byte of the answer
_NO_FILE_SECONDS = 0.2
_ROOM_SECONDS = 1.0  # time for a thread to close a connection that was shut down

_log = logging.getLogger("postroom.metrics")
_TEXT = [("Content-Type", "text/plain; charset=utf-8")]
_JSON = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
Start = Callable[..., Any]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False  # `stop` shuts connections down, which ends their threads
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], family: socket.AddressFamily) -> None:
        self.address_family = family
        self._open: dict[socket.socket, float] = {}  # in the order of acceptance
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:  # `::` takes IPv4 as well
            with suppress(OSError, AttributeError):
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            # Out of file descriptors: wait, while the connection stays in the queue.
            _log.debug("cannot accept a connection: %s", error)
            time.sleep(_NO_FILE_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread; at the limit, close the oldest connection first."""
        if not self._places.acquire(blocking=False):
            with self._lock:
                oldest = next(iter(self._open), None)
            if oldest is not None:
                _shut(oldest)
            if not self._places.acquire(timeout=_ROOM_SECONDS):
                self.shutdown_request(request)
                return
        with self._lock:
            self._open[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._served(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._served(request)

    def _served(self, request: socket.socket) -> None:
        with self._lock:
            self._open.pop(request, None)
        self._places.release()

    def service_actions(self) -> None:
        """Shut down connections beyond their time limit; called every half second."""
        began = time.monotonic() - CONNECTION_SECONDS
        with self._lock:
            late = [request for request, at in self._open.items() if at < began]
        for request in late:
            _shut(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - its shape
        """Log clients that disconnect at debug level only."""
        _log.debug("a client of the metrics port disconnected: %s", client_address, exc_info=True)

    def shut_all(self) -> None:
        with self._lock:
            requests = list(self._open)
        for request in requests:
            _shut(request)


def _shut(request: socket.socket) -> None:
    """Shut down a connection from another thread; the thread that serves it closes it."""
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    timeout = CONNECTION_SECONDS  # for silent clients

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        pass  # probes come every second

    def get_stderr(self) -> Any:
        return _Silent()  # wsgiref writes a traceback there when a client disconnects


class _Silent:
    """Redirects wsgiref's stderr output to the debug log."""

    def write(self, text: str) -> None:
        if text.strip():
            _log.debug("%s", text.rstrip())

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        pass


class MetricsServer:
    """Serves a registry and health probes on one port. Port 0 picks a free port."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry, health: Health) -> None:
        if not host:
            raise ConfigError(
                "metrics_host is empty; use 127.0.0.1 for this host only, 0.0.0.0 or :: for all "
                "addresses"
            )
        try:
            family, _, _, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._server = _Server((str(address[0]), int(address[1])), family)
        except (OSError, OverflowError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot listen on {host}:{port} for metrics: {why}") from error
        self._server.set_app(_app(registry, health))
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="postroom-metrics", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.shut_all()
        self._server.server_close()
        self._thread.join()


def _app(registry: CollectorRegistry, health: Health) -> Callable[..., Iterable[bytes]]:
    metrics = make_wsgi_app(registry)
    answers: dict[str, Callable[[], Answer]] = {"/livez": health.alive, "/readyz": health.ready}

    def app(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [*_TEXT, ("Allow", "GET, HEAD")])
            return [b"GET only\n"]
        if path == "/metrics":
            found: Iterable[bytes] = metrics(environ, start)
            return found
        if path not in answers:
            start("404 Not Found", [*_TEXT])
            return [b"not found; available: /metrics, /livez, /readyz\n"]
        ok, facts = answers[path]()
        start("200 OK" if ok else "503 Service Unavailable", [*_JSON])  # wsgiref adds to the list
        return [json.dumps(facts).encode() + b"\n"]

    return app
