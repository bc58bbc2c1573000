"""Examples are programs of their own: no import from the tests, a compose file, a line in the index."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from examples.places import URLS, with_option
from tests.servers.examples import NEEDED

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
FILES = sorted(EXAMPLES.rglob("*.py"))
INDEX = (EXAMPLES / "README.md").read_text(encoding="utf-8")


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(EXAMPLES).as_posix())
def test_an_example_imports_nothing_from_the_tests(path):
    assert [name for name in imports(path) if name.split(".")[0] == "tests"] == []


def test_every_example_is_in_the_index_and_can_be_run():
    programs = {path.parent.name for path in EXAMPLES.glob("*/__main__.py")}
    assert programs == set(NEEDED)
    listed = re.findall(r"^\| \[`([\w.]+)`\]", INDEX, re.MULTILINE)
    assert set(listed) == programs | {"single_file.py"}


@pytest.mark.parametrize("name", [name for name, servers in NEEDED.items() if servers])
def test_the_compose_file_has_the_servers_and_ports_of_the_example(name):
    found = yaml.safe_load((EXAMPLES / name / "compose.yaml").read_text(encoding="utf-8"))
    assert set(found["services"]) == set(NEEDED[name])
    for server, service in found["services"].items():
        address, host_port, _ = service["ports"][0].split(":")
        assert f"{address}:{host_port}" in URLS[server]
        assert "healthcheck" in service


@pytest.mark.parametrize("name", [name for name, servers in NEEDED.items() if servers])
def test_an_example_takes_urls_and_says_how_to_start_its_servers(name):
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}", "--help"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    for server in NEEDED[name]:
        assert f"--{server} URL" in done.stdout
    assert f"docker compose -f examples/{name}/compose.yaml up --detach --wait" in done.stdout


def test_options_are_added_to_a_url():
    assert with_option("kafka://h", topic="a") == "kafka://h?topic=a"
    assert with_option("amqp://h/?x=1", exchange="e", declare="on") == (
        "amqp://h/?x=1&exchange=e&declare=on"
    )
