"""Runs an example on servers that are started for it: make example NAME=payments.

The example is a program of its own and knows URLs only. It stops and starts its broker by commands;
these send a line to this process, which owns the servers.
"""

from __future__ import annotations

import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.servers.catalog import SERVERS
from tests.servers.process import Running

ROOT = Path(__file__).parents[2]
NEEDED = {
    "modules": (),
    "payments": ("postgres", "rabbitmq"),
    "django_shop": ("postgres", "kafka"),
    "orders_kafka": ("mariadb", "kafka"),
    "checkout": ("mongo", "kafka"),
    "wiki": ("mongo",),
}
_SEND = (
    "import socket, sys; s = socket.create_connection(('127.0.0.1', {port})); "
    "s.sendall(b'{request}\\n'); sys.exit(s.recv(99) != b'done')"
)


def command(name: str, servers: Mapping[str, Running], port: int) -> list[str]:
    """Return the command of an example on these servers."""
    words = [sys.executable, "-W", "error", "-m", f"examples.{name}"]
    for server in NEEDED[name]:
        words += [f"--{server}", servers[server].url]
    if NEEDED[name] and NEEDED[name][-1] in ("kafka", "rabbitmq"):
        for option, verb in (("--stop", "kill"), ("--start", "restart")):
            request = f"{NEEDED[name][-1]} {verb}"
            code = _SEND.format(port=port, request=request)
            words += [option, f'{sys.executable} -c "{code}"']
    return words


@contextmanager
def obeying(servers: Mapping[str, Running]) -> Iterator[int]:
    """Kill and restart servers on request; yields the port."""

    class Request(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            name, verb = self.rfile.readline().decode().split()
            server = servers[name]
            (server.kill if verb == "kill" else server.restart)()
            self.wfile.write(b"done")

    with socketserver.TCPServer(("127.0.0.1", 0), Request) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield listening.server_address[1]
        finally:
            listening.shutdown()
            thread.join()


def run_example(name: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Start the servers of an example and run it; options are those of subprocess.run."""
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(SERVERS[kind].make()) for kind in NEEDED[name]}
        port = stack.enter_context(obeying(servers))
        return subprocess.run(  # type: ignore[call-overload, no-any-return]
            command(name, servers, port), cwd=ROOT, text=True, check=False, **options
        )
