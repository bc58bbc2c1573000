"""The example of the wiki runs on a MongoDB that is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pymongo import MongoClient

ROOT = Path(__file__).parents[2]


def run(*arguments):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.wiki", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "alarm" not in done.stderr  # only the failures that it plants are logged
    return [line.strip() for line in done.stdout.splitlines()]


@pytest.mark.req("S2.3", "S2.4", "S2.5", "S2.6")
def test_the_example_tells_what_happened_and_leaves_nothing_behind(mongo_url):
    with MongoClient(mongo_url) as client:
        before = set(client.list_database_names())
        said = run("--mongo", mongo_url)
        left = set(client.list_database_names()) - before
    assert not {name for name in left if name.startswith("example_")}
    assert "events: 4 pending" in said
    assert "events: 3 done, 1 dead" in said
    assert "the renderer was tried 3 times for Flaky" in said
    assert "it looked at 4 pages and added Lost:1" in said
    assert "again: it looked at 4 pages and added 0" in said
    assert said[-1] == "events: 4 done, 1 dead"
    rendered = [line.split()[0] for line in said if "<h1>" in line]
    assert rendered == ["Animals:1", "Animals:2", "Flaky:1", "Lost:1"]
    assert "a search for 'dogs' finds: Animals" in said
    (dead,) = [line for line in said if line.startswith("dead letter")]
    assert dead == (
        "dead letter Attack:1: render: this page can never be rendered: it contains a script"
    )
