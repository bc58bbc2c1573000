"""`postroom reconcile`: a reconciler of the user's code, to the end of its collection."""

from __future__ import annotations

import json

import pytest
from pymongo import MongoClient

from tests.cli.command import Running, call

CODE = """
from postroom import Event
from postroom.stores.mongo import HasResult, Reconciler

def page_saved(page):
    return Event("page.saved", {"text": page["text"]}, id=f"{page['_id']}:{page['revision']}")

pages = Reconciler(%r, "pages", page_saved, HasResult("rendered"), limit=2)
"""


@pytest.mark.slow
@pytest.mark.req("S2.6")
def test_it_adds_what_is_missing_and_nothing_twice(tmp_path, mongo_place):
    mongo_place.migrate()
    (tmp_path / "wiki_app.py").write_text(CODE % mongo_place.url)
    with MongoClient(mongo_place.url) as client:
        pages = client.get_default_database()["pages"]
        pages.insert_many([{"_id": f"p{n}", "revision": 1, "text": "x"} for n in range(5)])
        pages.insert_one({"_id": "q", "revision": 1})  # no text: no event can be made of it

        first = call("reconcile", "wiki_app:pages", "--once", "--json", cwd=tmp_path)
        assert (first.returncode, first.stderr) == (0, "")
        assert json.loads(first.stdout) == {
            "reconciler": "pages", "looked": 2, "present": 0, "repaired": 2, "finished": False,
            "failed": [],
        }  # fmt: skip
        rest = call("reconcile", "wiki_app:pages", "--json", cwd=tmp_path)
        assert rest.returncode == 1
        told = json.loads(rest.stdout)
        assert (told["repaired"], told["finished"]) == (3, True)
        assert told["failed"] == [{"document": "q", "error": "KeyError: 'text'"}]
        pages.delete_one({"_id": "q"})
    again = call("reconcile", "wiki_app:pages", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (
        0,
        "5 documents checked, 0 missing events added\n",
    )
    listed = call("list", "--store", mongo_place.url, "--json", cwd=tmp_path).stdout.splitlines()
    assert sorted(json.loads(line)["id"] for line in listed) == [f"p{n}:1" for n in range(5)]


@pytest.mark.slow
@pytest.mark.req("S2.6")
def test_it_runs_beside_a_relay(tmp_path, mongo_place):
    mongo_place.migrate()
    (tmp_path / "wiki_app.py").write_text(CODE % mongo_place.url)
    (tmp_path / "postroom.toml").write_text(
        f'store = "{mongo_place.url}"\nbroker = "null:"\nlog_level = "debug"\n'
        'reconcilers = ["wiki_app:pages"]\n'
    )
    with MongoClient(mongo_place.url) as client:
        pages = client.get_default_database()["pages"]
        pages.insert_one({"_id": "lost", "revision": 1, "text": "x"})
    with Running("run", cwd=tmp_path) as process:
        process.hear("starting reconciler=pages")
        process.hear("settled stream=main done=1")
        process.send()
        assert process.end() == 0
    (tmp_path / "postroom.toml").write_text(
        'store = "sqlite:///x.db"\nreconcilers = ["json:loads"]\n'
    )
    wrong = call("run", "--broker", "null:", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "postroom.toml:2: json:loads is function, not a Reconciler" in wrong.stderr


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("nothing", "name a reconciler as package.module:attribute"),
        ("no_such_module:x", "the reconciler no_such_module:x cannot be loaded: No module named"),
        ("json:loads", "json:loads is function, not a Reconciler"),
    ],
)
def test_what_is_no_reconciler_is_one_line(tmp_path, argument, said):
    done = call("reconcile", argument, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
