"""`postroom story`: what an event caused, over the stores of several services."""

from __future__ import annotations

import asyncio
import json
import sqlite3

import pytest

from postroom import migrate
from postroom.event import Event
from postroom.inbox import SyncInbox
from postroom.record import row_id
from tests.cli.command import call
from tests.cli.conftest import Place


@pytest.fixture
def places(tmp_path):
    found = [Place(f"sqlite:///{tmp_path}/{name}.db") for name in ("orders", "payments")]
    for place in found:
        asyncio.run(migrate(place.url))
    return found


def asked(folder, *arguments, code=0):
    done = call("story", *arguments, cwd=folder)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert (
        arguments[-1].startswith("--") or max(map(len, done.stdout.splitlines()), default=0) <= 80
    )
    return done


def tell(place, *events):
    place.add(*events)


@pytest.mark.parametrize("indexed", [True, False])
def test_a_story_over_two_services(tmp_path, places, indexed):
    orders, payments = places
    both = ("--store", orders.url, "--store", payments.url)
    if indexed:
        for place in places:
            call("migrate", "--index", "correlation", "--store", place.url, cwd=tmp_path)
    orders.add(Event("order.placed", {}, id="placed", key="k"), Event("other", {}, id="other"))
    orders.deliver()
    caused = {"correlation_id": "placed", "causation_id": "placed"}
    payments.add(Event("order.paid", {}, id="paid", **caused))
    payments.deliver(broken=("paid",))
    payments.add(Event("mail.asked", {}, id="mail", **(caused | {"causation_id": "paid"})))
    keep(tmp_path / "payments.db", "placed", "billing")
    said = asked(tmp_path, "placed", *both)
    assert [line.split()[:2] for line in said.stdout.splitlines()] == [
        ["3", "events:"],
        ["order.placed", "pending"],  # the inbox of billing has not handled it
        ["placed"],
        ["→", "payments/billing:"],
        ["order.paid", "dead"],
        ["paid"],
        ["1", "attempt:"],
        ["mail.asked", "pending"],
        ["mail"],
    ]
    assert said.stdout.startswith("3 events: 1 dead, 2 waiting; ")
    assert ("no index" in said.stderr) is not indexed
    # From every event of it the same story is told.
    for name in ("paid", "mail"):
        assert asked(tmp_path, name, *both).stdout == said.stdout
    told = json.loads(asked(tmp_path, "mail", *both, "--json").stdout)
    assert [one["id"] for one in told["events"]] == ["placed", "paid", "mail"]
    assert [(p["store"], p["inbox"], p["state"]) for p in told["events"][0]["places"]] == [
        ("orders", None, "done"),
        ("payments", "billing", "pending"),
    ]
    assert "flowchart TD" in asked(tmp_path, "mail", *both, "--mermaid").stdout
    # Without the other service its cause is missing, and named.
    alone = asked(tmp_path, "mail", "--store", payments.url).stdout
    assert "order.paid" in alone


def keep(path, event_id, consumer):
    """Write a message as a durable inbox keeps it."""
    with sqlite3.connect(path) as conn:
        columns = (
            "lane, key_hash, type, topic, payload, content_type, size, occurred_at, created_at"
        )
        conn.execute(
            f"INSERT INTO postroom_outbox (id, stream, {columns}) "
            f"SELECT ?, ?, {columns} FROM postroom_outbox LIMIT 1",
            (row_id(consumer, event_id), f"inbox.{consumer}"),
        )
    conn.close()


def test_causes_that_are_gone_and_stores_that_do_not_answer(tmp_path, places):
    orders, _ = places
    orders.add(Event("order.paid", {}, id="paid", correlation_id="c", causation_id="pruned"))
    missing = f"sqlite:///{tmp_path}/nothing.db"
    said = asked(tmp_path, "c", "--store", orders.url, "--store", missing, code=3)
    assert "pruned: not in these stores (pruned?)\n" in said.stdout
    assert said.stderr.splitlines()[-1].startswith(f"{missing} is not in this story: ")
    told = json.loads(
        asked(tmp_path, "c", "--store", orders.url, "--store", missing, "--json", code=3).stdout
    )
    assert [one["store"] for one in told["unreachable"]] == [missing]
    assert asked(tmp_path, "x", "--store", orders.url, code=1).stderr.startswith(
        "postroom: no event with id or correlation id 'x' in sqlite:"
    )


def test_a_consumer_that_accepted_an_event_is_a_place_of_it(tmp_path, places):
    orders, payments = places
    orders.add(Event("order.placed", {}, id="placed"))
    orders.deliver()
    with sqlite3.connect(tmp_path / "payments.db") as conn:
        SyncInbox("billing").accept(conn, Event("order.placed", id="placed"))
    conn.close()
    said = asked(tmp_path, "placed", "--store", orders.url, "--store", payments.url)
    lines = said.stdout.splitlines()
    assert lines[0].startswith("1 event: 1 done; ")
    assert lines[3].startswith("  → payments/billing: done, +")
    told = json.loads(
        asked(tmp_path, "placed", "--store", orders.url, "--store", payments.url, "--json").stdout
    )
    assert [one["inbox"] for one in told["events"][0]["places"]] == [None, "billing"]


def test_a_story_is_bounded(tmp_path, places):
    orders, _ = places
    orders.add(
        *(Event("t", {}, id=f"e{n:03}", correlation_id="c", causation_id="c") for n in range(60))
    )
    said = asked(tmp_path, "c", "--store", orders.url, "--limit", "50", "--children", "5")
    assert "  … 45 more, left out: --children" in said.stdout
    assert "orders: more than 50 events; others: --limit" in said.stderr


def test_edited_rows_do_not_stop_a_story(tmp_path, places):
    orders, _ = places
    orders.add(
        *(Event("t", {}, id=f"e{n}", correlation_id="c", causation_id="e0") for n in range(4))
    )
    with sqlite3.connect(tmp_path / "orders.db") as conn:
        conn.execute("UPDATE postroom_outbox SET causation_id = 'e3', type = x'ff' WHERE id = 'e0'")
        conn.execute(
            "UPDATE postroom_outbox SET causation_id = x'fe', created_at = 'x' WHERE id = 'e2'"
        )
    conn.close()
    said = asked(tmp_path, "c", "--store", orders.url).stdout
    assert said.startswith("4 events")
    assert "(a cycle of causes)" in said
