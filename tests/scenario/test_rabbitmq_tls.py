"""amqps: whom to trust, and who we are, on a RabbitMQ that asks for certificates."""

from __future__ import annotations

import subprocess

import pytest

from postroom.brokers.rabbitmq import RabbitBroker
from postroom.testing.broker_tools import RecordingReporter, make_record
from tests.scenario.rabbit import Tap
from tests.servers.process import free_port
from tests.servers.rabbitmq import RabbitMQ

pytestmark = [pytest.mark.slow, pytest.mark.server]


class TlsRabbitMQ(RabbitMQ):
    """Lets in who has a certificate of our own authority."""

    def prepare(self):
        super().prepare()
        self.tls_port = free_port()
        self.make_authority("ca")
        self.make_authority("stranger")
        for name in ("server", "client"):
            self.make_certificate(name)
        conf = self.folder / "rabbitmq.conf"
        self.write(
            "rabbitmq.conf",
            conf.read_text() + f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}\n"
            f"ssl_options.cacertfile = {self.folder}/ca.pem\n"
            f"ssl_options.certfile = {self.folder}/server.pem\n"
            f"ssl_options.keyfile = {self.folder}/server.key\n"
            "ssl_options.verify = verify_peer\n"
            "ssl_options.fail_if_no_peer_cert = true\n",
        )

    def openssl(self, *words):
        subprocess.run(
            ["openssl", *words], cwd=self.folder, check=True, capture_output=True, timeout=60
        )

    def make_authority(self, name):
        self.openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.pem",
        )  # fmt: skip

    def make_certificate(self, name):
        self.openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-keyout",
            f"{name}.key", "-out", f"{name}.csr",
        )  # fmt: skip
        self.write("names", "subjectAltName = DNS:localhost\n")
        self.openssl(
            "x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey",
            "ca.key", "-CAcreateserial", "-extfile", "names", "-out", f"{name}.pem",
        )  # fmt: skip
        (self.folder / f"{name}.key").chmod(0o644)


@pytest.fixture(scope="module")
def server():
    with TlsRabbitMQ() as server:
        yield server


def url(server, host="localhost", **files):
    query = "&".join(f"{option}={server.folder}/{file}" for option, file in files.items())
    return f"amqps://guest:guest@{host}:{server.tls_port}/?connect_seconds=5&{query}"


OURS = {"certfile": "client.pem", "keyfile": "client.key"}


async def test_events_go_over_tls(server):
    async with Tap(server.url) as tap:
        await tap.queue("tls")
        broker = RabbitBroker(url(server, cafile="ca.pem", **OURS))
        reporter = RecordingReporter()
        await broker.publish([make_record(topic="tls")], reporter)
        await broker.publish_alone(make_record(2, topic="tls"), reporter)
        await broker.close()
        assert [outcome.error for _, outcome in reporter.reports] == ["", ""]
        assert len(await tap.drain("tls")) == 2


@pytest.mark.parametrize(
    ("host", "files", "error"),
    [
        ("localhost", {"cafile": "stranger.pem", **OURS}, "CERTIFICATE_VERIFY_FAILED"),
        ("127.0.0.1", {"cafile": "ca.pem", **OURS}, "IP address mismatch"),
        ("localhost", {"cafile": "ca.pem"}, "connecting to localhost"),
    ],
    ids=["another authority", "another name", "no certificate of ours"],
)
async def test_who_is_not_trusted_is_away(server, host, files, error):
    broker = RabbitBroker(url(server, host, **files))
    with pytest.raises(ConnectionError, match=error):
        await broker.health()
    await broker.close()


async def test_not_to_look_is_a_choice(server):
    broker = RabbitBroker(url(server, "127.0.0.1", **OURS) + "&verify=off")
    await broker.health()
    await broker.close()
