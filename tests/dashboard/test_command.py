"""`postroom dashboard`: closed by default, its section of the configuration, its end."""

from __future__ import annotations

import json
import signal
import urllib.request

import pytest

from postroom.cli.configuration import load
from postroom.cli.dashboard_section import KEYS, PROXY_KEYS, TOKEN_KEYS, USER_KEYS, read_section
from postroom.dashboard import Role, digest_of
from postroom.dashboard.access import verify_password
from postroom.errors import ConfigError
from tests.cli.command import Running, call
from tests.unit.test_docs import rows

FILE = """
[dashboard]
host = "0.0.0.0"
masks = ["card"]
secure_cookies = true

[dashboard.stores]
orders = "sqlite:///${FOLDER}/orders.db"

[[dashboard.user]]
name = "anna"
password_hash = "scrypt$16384$8$1$00112233445566778899aabbccddeeff$00112233445566778899aabbccddeeff"
role = "operator"

[[dashboard.token]]
name = "bot"
sha256 = "{digest}"

[dashboard.proxy]
addresses = ["10.0.0.5"]
role = "admin"
""".replace("{digest}", digest_of("x"))


def section(tmp_path, text):
    file = tmp_path / "postroom.toml"
    file.write_text(text)
    return read_section(load(file, {"FOLDER": "/data"}))


def test_the_section_is_read(tmp_path):
    found = section(tmp_path, FILE)
    assert (found.host, found.port) == ("0.0.0.0", 8321)
    assert {n: str(u) for n, u in found.stores.items()} == {"orders": "sqlite:////data/orders.db"}
    (user,), (token,) = found.settings.users, found.settings.tokens
    assert (user.name, user.role, user.payloads) == ("anna", Role.OPERATOR, False)
    assert (token.name, token.role) == ("bot", Role.VIEWER)
    assert found.settings.proxy.role is Role.ADMIN
    assert found.settings.secure_cookies is True
    assert section(tmp_path, "").settings.is_closed


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[dashboard]\nprot = 1", "did you mean 'port'"),
        ("[dashboard]\nport = '1'", "port has the wrong type"),
        ("[dashboard]\nport = true", "port has the wrong type"),
        ("[[dashboard.user]]\nname = 'a'", "needs name and password_hash"),
        ("[[dashboard.user]]\nname = 'a'\nrole = 'god'", "role"),
        ("[[dashboard.token]]\nname = 'a'\nsha256 = 'x'", "64 hexadecimal"),
        ("[dashboard.proxy]\nheader = 'X'", "needs its address"),
        ("[dashboard]\nmasks = [1]", "list of texts"),
        ("[dashboard.stores]\na = 1", "must be a URL"),
        ("dashboard = 1", "as a table"),
    ],
)
def test_a_wrong_section_is_refused(tmp_path, text, error):
    with pytest.raises(ConfigError, match=error):
        section(tmp_path, text)


def test_every_key_is_documented():
    table = {row[0].strip("`"): row[1] for row in rows("configuration.md", "Dashboard")}
    assert list(table) == list(KEYS)
    for name, keys in (("user", USER_KEYS), ("token", TOKEN_KEYS), ("proxy", PROXY_KEYS)):
        assert table[name].count("`") == 2 * len(keys)
        assert all(f"`{key}`" in table[name] for key in keys)


def test_it_does_not_listen_elsewhere_without_authentication(tmp_path):
    call("migrate", "--store", "sqlite:///app.db", cwd=tmp_path)
    done = call("dashboard", "--store", "sqlite:///app.db", "--host", "0.0.0.0", cwd=tmp_path)
    assert done.returncode == 2
    assert "does not listen on 0.0.0.0 without authentication" in done.stderr


def test_hashes_and_tokens(tmp_path):
    done = call("dashboard", "--new-token", cwd=tmp_path)
    token, digest = (line.split()[1] for line in done.stdout.splitlines())
    assert digest_of(token) == digest
    assert verify_password("correct horse", section_hash(tmp_path))


def section_hash(tmp_path):
    import subprocess

    from tests.cli.command import argv, environment

    done = subprocess.run(
        argv("dashboard", "--hash-password"), input="correct horse\n", text=True,
        capture_output=True, env=environment(), cwd=tmp_path, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout.strip()


def test_it_serves_this_machine_with_a_token_and_ends_gracefully(tmp_path):
    call("migrate", "--store", "sqlite:///app.db", cwd=tmp_path)
    with Running("dashboard", "--store", "sqlite:///app.db", "--port", "0", cwd=tmp_path) as run:
        found = run.hear(r"dashboard: (http://127\.0\.0\.1:\d+)/login\?token=(\S+)")
        request = urllib.request.Request(f"{found[1]}/api/v1/stores/app/overview")
        request.add_header("Authorization", f"Bearer {found[2]}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200
            assert b"No stream has events or a relay yet" in answer.read()
        run.send(signal.SIGTERM)
        assert run.end() == 0


def test_the_demo_has_faults_to_look_at(tmp_path):
    with Running("demo", "--dashboard", "--dir", "demo", cwd=tmp_path) as run:
        found = run.hear(r"dashboard: (http://127\.0\.0\.1:\d+)/login\?token=(\S+)")
        request = urllib.request.Request(f"{found[1]}/api/v1/stores/shop/overview")
        request.add_header("Authorization", f"Bearer {found[2]}")
        needs, paused = [], []
        while not {"dead", "blocked"} <= {one["kind"] for one in needs}:
            with urllib.request.urlopen(request, timeout=30) as answer:
                overview = json.load(answer)
            needs = overview["needs"]
            paused = [one["name"] for one in overview["streams"] if one["pause"]]
        assert paused == ["reports"]
        run.send(signal.SIGTERM)
        assert run.end() == 0
