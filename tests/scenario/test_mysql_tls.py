"""Encrypted connections to MariaDB: who is believed, and who must show a certificate."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

from postroom.errors import StoreError
from postroom.stores.mysql import MysqlStore
from tests.contract.mysql_database import own_database

NEW_KEY = ["-newkey", "rsa:2048", "-nodes", "-keyout"]


@pytest.fixture
def papers():
    """An authority, and certificates by it for the server `localhost` and for a client."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        place.chmod(0o755)  # the server may run as another user

        def openssl(*words):
            subprocess.run(["openssl", *words], cwd=place, check=True, capture_output=True)

        openssl("req", "-x509", *NEW_KEY, "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
        (place / "names").write_text("subjectAltName = DNS:localhost\n", encoding="ascii")
        for name in ("server", "client"):
            openssl("req", *NEW_KEY, f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
            openssl(
                "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-CAcreateserial", "-out", f"{name}.pem", "-extfile", "names",
            )  # fmt: skip
        for file in place.iterdir():
            file.chmod(0o644)
        yield place


@pytest.fixture
def database(own_server, papers):
    files = {"ca": "ca.pem", "cert": "server.pem", "key": "server.key"}
    server = own_server("mariadb", arguments=[f"--ssl-{k}={papers / f}" for k, f in files.items()])
    with own_database(server.url) as database:
        database.run(
            "CREATE USER encrypted REQUIRE SSL",
            "CREATE USER known REQUIRE X509",
            *(f"GRANT ALL ON {database.name}.* TO {user}" for user in ("encrypted", "known")),
        )
        yield database


async def test_tls_is_asked_for_and_checked(database, papers):
    await MysqlStore(database.url).migrate()

    async def cipher(user, host="localhost", **options):
        query = "&".join(f"{name}={value}" for name, value in options.items())
        url = database.url.replace("root@127.0.0.1", f"{user}@{host}")
        store = MysqlStore(f"{url}?{query}")
        await store.open()
        try:
            async with store.session() as session:
                ((_, used),) = await session.query("SHOW STATUS LIKE 'Ssl_cipher'")
            with store.sync_transaction() as tx, tx.cursor() as cursor:  # and handlers in threads
                cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
                assert cursor.fetchone()[1] or not used  # PyMySQL uses TLS where it is offered
        finally:
            await store.close()
        return used

    own = {"ssl_cert": papers / "client.pem", "ssl_key": papers / "client.key"}
    ca = {"ssl_ca": papers / "ca.pem"}
    assert await cipher("root") == ""
    assert await cipher("encrypted", ssl_mode="required")
    assert await cipher("encrypted", **ca)
    assert await cipher("encrypted", host="127.0.0.1", ssl_mode="verify_ca", **ca)
    assert await cipher("known", **ca, **own)
    for refused in (
        cipher("encrypted"),  # in clear
        cipher("encrypted", host="127.0.0.1", **ca),  # by another name
        cipher("encrypted", ssl_mode="verify_ca"),  # by an authority that nobody trusts
        cipher("known", **ca),  # without a certificate
    ):
        with pytest.raises(StoreError):
            await refused
