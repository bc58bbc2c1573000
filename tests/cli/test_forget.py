"""`postroom forget`, and inboxes of every kind of user that are pruned, through the real command."""

from __future__ import annotations

import json
import sqlite3
from types import SimpleNamespace

import pytest

from postroom.admin.inbox_diagnosis import judge_inboxes
from postroom.cli.app import execute
from postroom.commands import Edit
from postroom.engine.consumer.durable_inbox import DurableInbox
from postroom.engine.consumer.messages import to_record
from postroom.event import Event
from postroom.inbox import SyncInbox
from postroom.integrations.faststream import inbox_name
from postroom.lookup import MAX_INBOX_ROWS, Filter, InboxStats
from postroom.model.incoming import Incoming
from postroom.stores.sqlite import SqliteStore
from tests.cli.command import call

DAY_US = 86_400_000_000


@pytest.fixture
def place(sqlite_place):
    sqlite_place.migrate()
    return sqlite_place


@pytest.fixture
def postroom(place, tmp_path):
    def run(*arguments, code=0):
        done = call(*arguments, cwd=tmp_path, POSTROOM_STORE=place.url, POSTROOM_USER="anna")
        assert done.returncode == code, (done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    return run


def whole_file(tmp_path):
    """Return everything that the tables hold, as text."""
    with sqlite3.connect(tmp_path / "app.db") as conn:
        return "\n".join(conn.iterdump())


def test_a_person_is_erased_everywhere(place, postroom, tmp_path):
    mine = {"key": "ada@x.org", "correlation_id": "corr-ada", "headers": {"who": "Ada"}}
    place.add(
        Event("order", {"name": "Ada"}, id="done", **mine),
        Event("order", {"name": "Ada"}, id="dead", **mine),
        Event("order", {"name": "Bob"}, id="other", key="bob"),
    )
    assert place.deliver(broken={"dead"}, error="no mailbox Ada") == ["done", "other"]
    message = Incoming("orders", b"Ada", {"postroom-id": "m", "postroom-key": "ada@x.org"}, None)

    async def more(store):
        await store.edit("dead", Edit(b'{"name": "Ada L"}'))
        await DurableInbox(store, "mail", strict=False).bury(message, to_record(message), "Ada")

    place(more)
    assert place.deliver() != []
    with sqlite3.connect(tmp_path / "app.db") as conn:
        for name in ("done", "m"):
            SyncInbox("payments").accept(conn, Event("order", id=name, correlation_id="corr-ada"))
    dry = json.loads(postroom("forget", "--key", "ada@x.org", "--dry-run", "--json").stdout)
    assert dry == {
        "chosen": 4, "states": {"dead": 2, "done": 2}, "erased": 0, "dry_run": True,
    }  # fmt: skip
    assert "add --yes" in postroom("forget", "--key", "ada@x.org", code=2).stderr
    assert postroom("forget", "--key", "ada@x.org", "--yes").stdout == "erased 4 events\n"
    left = whole_file(tmp_path)
    assert [word for word in ("Ada", "ada@x.org", "corr-ada") if word in left] == []
    assert "Bob" in left
    with sqlite3.connect(tmp_path / "app.db") as conn:
        for name in ("done", "m"):  # a redelivery is still recognized
            assert not SyncInbox("payments").accept(conn, Event("order", id=name))
    entry = json.loads(postroom("audit", "--limit", "1", "--json").stdout)
    assert (entry["what"], entry["how_many"], entry["who"]) == ("forget", 4, "anna")
    assert entry["about"].startswith("key with the sha256 ")
    assert postroom("forget", "--key", "ada@x.org", "--yes").stdout == "erased 0 events\n"


def test_unsent_events_are_refused_and_strict_ones_always(place, postroom):
    place.add(*(Event("t", {"n": n}, id=str(n), key="k") for n in range(3)))
    refused = postroom("forget", "--key", "k", "--yes", code=2)
    assert "3 events of these were not sent, and erasing loses them" in refused.stderr
    assert postroom("forget", "--key", "k", "--unsent", "--yes").stdout == "erased 3 events\n"
    assert place(lambda store: store.find(Filter())) == []
    place.add(Event("t", id="strict", key="k"), strict=True)
    refused = postroom("forget", "--key", "k", "--unsent", "--yes", code=2)
    assert "1 unsent event of strict order" in refused.stderr
    assert place.deliver() == ["strict"]
    assert postroom("forget", "--key", "k", "--yes").stdout == "erased 1 event\n"
    place.add(Event("t", id="next", key="k"), strict=True)
    assert place(lambda store: store.get("next")).kseq == 2  # consumers notice nothing


def test_the_audit_log_names_no_unsent_event(place, postroom, tmp_path):
    place.add(*(Event("t", id=f"ada-{n}", key="ada@x.org") for n in range(3)))
    postroom("forget", "--key", "ada@x.org", "--unsent", "--yes")
    assert "ada" not in whole_file(tmp_path)
    log = postroom("audit", "--json").stdout.splitlines()
    assert [(one["what"], one["how_many"]) for one in map(json.loads, log)] == [
        ("forget", 3), ("bury", 3),
    ]  # fmt: skip


def test_an_event_that_another_operator_replays_meanwhile_is_reported(place, monkeypatch, capsys):
    place.add(*(Event("t", id=name, key="k") for name in ("a", "b")))
    place(lambda store: store.bury(["a", "b"], "no"))
    forget = SqliteStore.forget

    async def late(store, *arguments, **named):
        await store.replay(["b"])
        return await forget(store, *arguments, **named)

    monkeypatch.setattr(SqliteStore, "forget", late)
    assert execute(["forget", "--store", place.url, "--key", "k", "--yes"]) == 1
    out, err = capsys.readouterr()
    assert out == "erased 1 event\n"
    assert "1 event changed meanwhile and may still be there; run the command again" in err


def test_an_aggregate_is_erased_whatever_its_keys(place, postroom):
    place.add(
        Event("t", id="a", aggregate_type="customer", aggregate_id="7"),
        Event("t", id="b", aggregate_type="customer", aggregate_id="7", key="other"),
        Event("t", id="c", aggregate_type="order", aggregate_id="7"),
    )
    place.deliver()
    done = postroom("forget", "--aggregate", "customer", "7", "--yes", "--json")
    assert json.loads(done.stdout)["erased"] == 2
    assert [r.id for r in place(lambda store: store.find(Filter()))] == ["c"]
    assert "Give --key or --aggregate" in postroom("forget", code=2).stderr
    both = ("forget", "--key", "k", "--aggregate", "a", "b")
    assert "one of the two" in postroom(*both, code=2).stderr


def test_an_inbox_of_accept_by_hand_is_pruned_and_named_by_the_doctor(place, postroom, tmp_path):
    function = SimpleNamespace(call_name="pay")  # FastStream's subscriber
    subscriber = SimpleNamespace(queue=SimpleNamespace(name="queue"), specification=function)
    assert inbox_name("payments", subscriber) == "payments/pay@queue"
    with sqlite3.connect(tmp_path / "app.db") as conn:
        for n in range(150):
            SyncInbox("payments/pay@queue").accept(conn, Event("t", id=str(n)))
        conn.execute("UPDATE postroom_inbox SET processed_at = processed_at - ?", (40 * DAY_US,))
    found = [json.loads(line) for line in postroom("doctor", "--json").stdout.splitlines()]
    (finding,) = [one for one in found if "inbox" in one["what"]]
    said = "the inbox payments/pay@queue has 150 rows, the oldest 40 days old"
    assert (finding["level"], finding["what"]) == ("warning", said)
    assert "postroom prune --inbox payments/pay@queue" in finding["fix"]
    pruned = postroom("prune", "--inbox", "payments/pay@queue", "--older-than", "30d")
    assert pruned.stdout == "removed 150 inbox rows of payments/pay@queue\n"
    assert "the inbox" not in postroom("doctor", "--json").stdout


@pytest.mark.parametrize(
    ("rows", "days", "named"), [(99, 400, False), (100, 30, False), (MAX_INBOX_ROWS, 32, True)]
)
def test_only_an_inbox_that_nothing_prunes_is_named(rows, days, named):
    inbox = InboxStats("a", rows, 1_000 * DAY_US - days * DAY_US)
    found = list(judge_inboxes([inbox], 30 * 86_400.0, 1_000 * DAY_US))
    assert bool(found) is named
    assert not named or "10,000 rows or more" in found[0].what
