"""/metrics, /livez and /readyz over HTTP, from a thread: they answer while the loop hangs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app
from prometheus_client.registry import CollectorRegistry

from postroom.errors import ConfigError
from postroom.telemetry.health import Answer, Health

_TEXT = [("Content-Type", "text/plain; charset=utf-8")]
_JSON = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
Start = Callable[..., Any]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_address = True


class _Quiet(WSGIRequestHandler):
    timeout = 30  # of a client that says nothing

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        pass  # a probe every second is no news


class MetricsServer:
    """Serves a registry and a health on one port. Port 0 takes a free one."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry, health: Health) -> None:
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
                return [b"there are /metrics, /livez and /readyz\n"]
            ok, facts = answers[path]()
            start(
                "200 OK" if ok else "503 Service Unavailable", [*_JSON]
            )  # wsgiref adds to the list
            return [json.dumps(facts).encode() + b"\n"]

        try:
            self._server = make_server(host, port, app, _Server, _Quiet)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot listen on {host}:{port} for metrics: {why}") from error
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="postroom-metrics", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
