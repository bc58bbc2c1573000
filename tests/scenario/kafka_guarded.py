"""A Kafka with a guarded door: TLS, passwords, and permissions per user."""

from __future__ import annotations

import subprocess

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.servers import programs
from tests.servers.kafka import Kafka
from tests.servers.process import free_port

PASSWORDS = {"relay": "s3cret-of-relay", "blind": "s3cret-of-blind", "reader": "s3cret-of-reader"}
STORE_PASSWORD = "changeit"


class GuardedKafka(Kafka):
    """Beside the open door, which is for the tests' own tools, one with TLS and SASL."""

    name = "kafka"

    def __init__(self, **options):
        super().__init__(**options)
        self.guarded_port = free_port()

    @property
    def ca(self):
        """The certificate that clients trust."""
        return self.folder / "ca.pem"

    def guarded_url(self, user, password=None, **options):
        """The URL of a user; options have underscores for dots."""
        query = {"ssl_ca_location": self.ca, **options}
        words = "&".join(f"{name.replace('_', '.')}={value}" for name, value in query.items())
        password = password or PASSWORDS[user]
        return f"kafka://{user}:{password}@127.0.0.1:{self.guarded_port}?{words}"

    def prepare(self):
        super().prepare()
        keys = self.folder / "keys.p12"
        tool = [programs.program("java").parent / "keytool"]
        common = ["-keystore", keys, "-storetype", "PKCS12", "-storepass", STORE_PASSWORD]
        for words in (
            ["-genkeypair", "-alias", "kafka", "-keyalg", "EC", "-dname", "CN=127.0.0.1",
             "-ext", "SAN=ip:127.0.0.1", "-validity", "2"],
            ["-exportcert", "-rfc", "-alias", "kafka", "-file", self.ca],
        ):  # fmt: skip
            subprocess.run([*tool, *words, *common], check=True, capture_output=True, timeout=60)
        users = " ".join(f'user_{name}="{word}"' for name, word in PASSWORDS.items())
        door = f"SASL_SSL://127.0.0.1:{self.guarded_port}"
        more = {
            "listeners": f"PLAINTEXT://{self.address},{door},"
            f"CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.address},{door}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            "SASL_SSL:SASL_SSL",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": "org.apache.kafka.common.security."
            f"plain.PlainLoginModule required {users};",
            "ssl.keystore.location": keys,
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.password": STORE_PASSWORD,
            "ssl.key.password": STORE_PASSWORD,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }
        lines = "".join(f"{key}={value}\n" for key, value in more.items())
        self.configuration.write_text(self.configuration.read_text() + lines)

    def allow(self, user, topic, *operations):
        """Give a user permissions on a topic."""
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        bindings = [
            AclBinding(
                ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*",
                getattr(AclOperation, operation), AclPermissionType.ALLOW,
            )
            for operation in operations
        ]  # fmt: skip
        for done in admin.create_acls(bindings).values():
            done.result(30)
