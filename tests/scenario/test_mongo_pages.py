"""The pages about MongoDB are true: their programs run, their tables match the code.

On a page, the blocks marked `python run mongo` are one program, which finds an empty database in
DATABASE_URL; the blocks marked `text output` are, together, what it prints.
"""

from __future__ import annotations

import inspect
import os
import uuid

import pymongo
import pytest

from postroom.stores.mongo import Reconciler
from postroom.stores.mongo.schema import load_migrations
from postroom.stores.mongo.settings import MongoSettings
from tests.contract.mongo_database import url_of
from tests.unit.test_docs import ROOT, blocks, python
from tests.unit.test_kafka_docs import table

PAGES = ("mongodb", "mongodb-embedded", "mongodb-reconciler")
FREE = ("mongodb-embedded", "mongodb-reconciler")  # also without transactions


def run(page, url, folder, monkeypatch):
    database = url_of(url, f"pages_{uuid.uuid4().hex[:12]}")
    program = folder / "program.py"
    program.write_text("\n\n".join(blocks(page, "python run mongo")))
    monkeypatch.setitem(os.environ, "DATABASE_URL", database)
    done = python([program.name], folder)
    with pymongo.MongoClient(database) as client:
        client.drop_database(client.get_default_database().name)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == "".join(blocks(page, "text output"))


@pytest.mark.req("S2.6")
@pytest.mark.parametrize("name", PAGES)
def test_the_program_of_a_page_runs(name, mongo_url, tmp_path, monkeypatch):
    run(ROOT / f"docs/how-to/{name}.md", mongo_url, tmp_path, monkeypatch)


@pytest.mark.req("S2.6")
@pytest.mark.parametrize("name", FREE)
def test_the_pages_that_need_no_transactions_run_without(
    name, mongo_standalone_url, tmp_path, monkeypatch
):
    run(ROOT / f"docs/how-to/{name}.md", mongo_standalone_url, tmp_path, monkeypatch)


def defaults(thing, *required):
    parameters = inspect.signature(thing).parameters
    return {n: repr(p.default) for n, p in parameters.items() if n not in required}


def test_options_have_their_defaults():
    listed = {row[0].strip("`"): row[1].strip("`") for row in table("how-to/mongodb.md", "The URL")}
    assert listed == defaults(MongoSettings, "database")
    listed = {
        row[0].strip("`"): row[1].strip("`")
        for row in table("how-to/mongodb-reconciler.md", "Run it")
    }
    assert listed == defaults(Reconciler, "store", "collection", "event", "served")


@pytest.mark.req("S2.1", "S1.9")
def test_the_reference_names_every_field_and_collection():
    page = (ROOT / "docs/reference/tables.md").read_text()
    commands = [command for step in load_migrations("postroom_") for command in step.commands]
    _, _, section = page.partition("## On MongoDB\n")
    for command in commands:
        if "create" in command:
            assert f"`{command['create']}`" in section
        for index in command.get("indexes", ()):
            assert f"`{index['name']}`" in section
    for word in ("status", "lease_owner", "lease_until", "attempts", "last_error", "created_at"):
        assert f"`{word}`" in section
    assert "`next_attempt_at`" in section
    words = (ROOT / "docs/explanation/requirements.md").read_text()
    assert "| `next_attempt_at` | | `next_retry_at` |" in words
