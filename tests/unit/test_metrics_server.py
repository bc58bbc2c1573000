"""The metrics port against clients that say nothing, break off, or come by the hundred."""

import errno
import http.client
import socket
import threading
from contextlib import suppress

import pytest
from prometheus_client.registry import CollectorRegistry

from postroom.errors import ConfigError
from postroom.telemetry import server as server_module
from postroom.telemetry.health import Answer
from postroom.telemetry.server import MetricsServer


class Well:
    def alive(self):
        return Answer(True, {"loop_silent_seconds": 0.0})

    ready = alive


def make(host="127.0.0.1"):
    return MetricsServer(host, 0, CollectorRegistry(), Well())


@pytest.fixture
def server():
    server = make()
    server.start()
    yield server
    server.stop()


def get(server, path="/livez", host="127.0.0.1"):
    connection = http.client.HTTPConnection(host, server.port, timeout=20)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def test_a_probe_is_answered_beside_hundreds_of_idle_connections(server):  # X-M2
    idle = [connect(server) for _ in range(200)]
    try:
        assert get(server) == 200
        serving_threads = [t for t in threading.enumerate() if "process_request" in t.name]
        assert len(serving_threads) <= server_module.MAX_CONNECTIONS
    finally:
        for one in idle:
            one.close()


def test_one_probe_after_the_other_is_answered(server):
    answers = [get(server) for _ in range(server_module.MAX_CONNECTIONS + 5)]
    assert set(answers) == {200}


def test_an_idle_connection_ends_when_its_time_is_over(monkeypatch):  # X-M2
    monkeypatch.setattr(server_module, "CONNECTION_SECONDS", 0.1)
    monkeypatch.setattr(server_module._Handler, "timeout", None)
    server = make()
    server.start()
    try:
        with connect(server) as slow:
            slow.sendall(b"GET /livez HT")  # and then nothing, or a byte now and then
            assert slow.recv(1) == b""
    finally:
        server.stop()


def test_clients_that_break_off_are_no_news(server, capfd):  # X-M2
    for said in (b"", b"GET", b"\x00\xff\r\n\r\n", b"GET /metrics HTTP/1.1\r\n"):
        with connect(server) as client:
            client.sendall(said)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    assert get(server, "/metrics") == 200
    server._server.handle_error(None, ("127.0.0.1", 1))
    assert capfd.readouterr() == ("", "")


@pytest.mark.promise("F2")
def test_without_file_descriptors_it_waits_instead_of_spinning(monkeypatch):  # X-M2
    """A connection that cannot be accepted stays ready: the next look comes at once."""
    pauses = []
    monkeypatch.setattr(server_module.time, "sleep", pauses.append)
    server = make()

    def full(self):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(server_module.WSGIServer, "get_request", full)
    with connect(server):
        server._server.handle_request()
    server._server.server_close()
    assert pauses == [server_module._NO_FILE_SECONDS]


def test_ipv6(server):  # X-M2
    other = make("::")
    other.start()
    try:
        assert get(other, host="::1") == 200
        assert get(other, host="127.0.0.1") == 200
    finally:
        other.stop()


def test_an_empty_host_is_refused():  # X-M2: it would have meant every address
    with pytest.raises(ConfigError, match=r"metrics_host is empty.*0\.0\.0\.0"):
        make("")


def test_a_host_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match=r"cannot listen on nowhere\.invalid:0"):
        make("nowhere.invalid")


def test_a_stop_does_not_wait_for_idle_clients():
    server = make()
    server.start()
    with connect(server) as client:
        server.stop()
        with suppress(ConnectionResetError):  # if it had not been accepted yet
            assert client.recv(1) == b""
