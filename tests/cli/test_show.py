"""What `show` prints for a person: readable, within 80 columns, and nothing that a terminal obeys."""

from __future__ import annotations

import asyncio
import json
import sqlite3

import pytest

from postroom import SyncInbox, SyncOutbox, migrate
from postroom.admin.event_facts import describe
from postroom.brokers.memory import MemoryBroker
from postroom.cli.show import render
from postroom.engine.relay.relay import Relay
from postroom.event import Event
from postroom.lookup import Details
from postroom.model.history import Entry, append
from postroom.store import Lease
from postroom.testing.broker_tools import make_record
from tests.cli.command import call

DETAILS = Details("over", None, 1_700_000_000_000_000, None, None, None)


def shown(record, details=DETAILS, lane=(None, ""), received=()):
    return "\n".join(render(describe(record, details, lane, received)))


def test_text_of_all_languages_is_shown_and_control_characters_are_not():
    text = '{"name":"Зоя äöü 東京","evil":"\\u001b[31m\\u202e\\u0085","line":"a\\nb"}'
    said = shown(make_record(payload=text.encode()))
    assert '"name": "Зоя äöü 東京"' in said
    assert '"evil": "\\u001b[31m\\u202e\\u0085"' in said
    assert '"line": "a\\nb"' in said
    assert all(c.isprintable() or c == "\n" for c in said)


def test_long_errors_are_wrapped_under_their_name():
    error = "ConnectionError: " + "the bank refused the connection " * 6
    said = shown(make_record(last_error=error.strip()))
    lines = [line for line in said.splitlines() if "bank" in line]
    assert len(lines) > 2
    assert all(len(line) <= 80 for line in said.splitlines())
    start = lines[0].index("ConnectionError")
    assert all(line[:start].strip() == "" and line[start] != " " for line in lines[1:])


def test_a_blocked_key_is_told_in_words():
    details = DETAILS._replace(stage="waiting", settled_us=None, barrier=184)
    lane = (Lease(3, "owner-1", 7, True), "box-1")
    said = shown(make_record(), details, lane)
    assert "events of this key after seq 184 wait" in said
    assert "lane_relay       box-1" in said
    assert "wait" not in shown(make_record())


def test_options_are_shown_if_there_are_any():
    record = make_record(key="k", payload=b"", options_json='{"tombstone":true,"partition":3}')
    said = shown(record)
    assert "options          {'tombstone': True, 'partition': 3}" in said
    assert said.endswith("\nnull")
    assert "options" not in shown(make_record())


def test_the_timeline_tells_of_attempts_and_commands():
    text = None
    for n in range(1, 11):
        us = 1_600_000_000_000_000 + n * 1_000_000
        entry = Entry(us, "box-1", "failed", n, "boom\x1b[31m", "  in charge\x1b\nKeyError")
        text = append(text, entry)
    text = append(text, Entry(1_600_000_020_000_000, "anna", "bury", None, "no such order"))
    details = DETAILS._replace(history=text)
    said = shown(make_record(), details).splitlines()
    assert "2020-09-13T12:26:41Z         attempt 1 by box-1: failed: boom\\x1b[31m" in said
    assert "2020-09-13T12:27:00Z         bury by anna: no such order" in said
    left_out = said.index("2020-09-13T12:26:43Z         … 3 more, left out")
    assert "attempt 3 by" in said[left_out - 1]
    assert "attempt 7 by" in said[left_out + 1]
    (at,) = [n for n, line in enumerate(said) if line.startswith("traceback of attempts ")]
    assert said[at].endswith(" 9, 10:")  # one text for all of them
    assert said[at + 1] == "  in charge\\u001b"
    assert all(line.isprintable() for line in said)
    facts = describe(make_record(), details, (None, ""))
    assert facts["history"]["dropped"] == 3
    assert len(facts["history"]["entries"]) == 8


@pytest.mark.parametrize(
    ("receipt", "told"),
    [
        ('{"by":"box-1","to":"kafka","topic":"orders","partition":3,"offset":17}',
         "done: sent by box-1, confirmed in Kafka topic orders, partition 3, offset 17"),
        ('{"by":"b","to":"kafka","topic":"orders","partition":3}',
         "done: sent by b, confirmed in Kafka topic orders, partition 3"),
        ('{"by":"b","to":"rabbitmq","exchange":"","routing_key":"k\\u001b[31m"}',
         "done: sent by b, confirmed by RabbitMQ exchange (default), routing key k\\x1b[31m"),
        ('{"by":"b","to":"handlers","handlers":["pay/charge","pay/mail"]}',
         "done: sent by b, committed by handlers pay/charge, pay/mail"),
        ('{"by":"b","to":"shelf","line":7}', "done: sent by b, confirmed by shelf line 7"),
        ('{"by":"b"}', "done: sent by b"),
        ('{"to":"kafka"', "done"),
        (None, "done"),
    ],
)  # fmt: skip
def test_a_done_event_tells_where_it_went(receipt, told):
    said = shown(make_record(state="done"), DETAILS._replace(receipt=receipt))
    lines = said.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert all(line.isprintable() for line in lines)
    at = next(
        n for n, line in enumerate(lines) if line.startswith("2023-11-14T22:13:20Z         done")
    )
    end = [line[29:] for line in lines[at:] if line]
    assert " ".join(end).startswith(told)


def test_only_a_done_event_has_a_place():
    details = DETAILS._replace(receipt='{"by":"box-1","to":"kafka","topic":"orders"}')
    assert "orders" not in shown(make_record(state="dead"), details)


def test_the_relay_that_handles_it_now_is_named():
    details = DETAILS._replace(
        stage="ready", settled_us=None, lease_owner="owner-1", lease_until_us=1_700_000_009_000_000
    )
    record = make_record(state="processing")
    line = "2023-11-14T22:13:29Z         end of the lease of box-1, which handles it"
    assert line in shown(record, details, (Lease(3, "owner-1", 7, True), "box-1"))
    assert "lease of owner-1," in shown(record, details, (Lease(3, "owner-2", 7, True), "box-2"))


def test_a_message_in_a_durable_inbox_and_a_time_that_is_none():
    one = {
        "store": "s",
        "consumer": "mail",
        "at": "2023-11-14T22:13:21Z",
        "state": "dead",
        "stored": True,
    }
    odd = {"store": "t", "consumer": "c", "at": "not a date: 7", "state": "received"}
    said = shown(make_record(), received=[one, odd])
    assert "2023-11-14T22:13:21Z         stored in the durable inbox of mail (s): dead" in said
    assert "-                            received by inbox c (t), not handled yet" in said


@pytest.mark.req("S1.9")
def test_the_timeline_reaches_the_inboxes_of_receiving_services(tmp_path):
    urls = [f"sqlite:///{tmp_path / name}.db" for name in ("orders", "payments", "mail")]

    async def live():
        for url in urls:
            await migrate(url)
        with sqlite3.connect(tmp_path / "orders.db") as conn, SyncOutbox().transaction(conn):
            SyncOutbox().add(conn, Event("made", {"n": 1}, id="e", topic="orders"))
        conn.close()
        await Relay(urls[0], MemoryBroker(), name="box-1").drain()

    asyncio.run(live())
    with sqlite3.connect(tmp_path / "payments.db") as conn:
        conn.execute("BEGIN")
        SyncInbox("payments/charge").accept(conn, Event("made", id="e"))
    conn.close()
    away = "postgresql://anna:secret@127.0.0.1:1/x"
    options = ["--store", urls[0], *(f"--inbox={url}" for url in (*urls[1:], away))]
    done = call("show", "e", *options, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "secret" not in done.stdout + done.stderr
    facts = json.loads(done.stdout)
    assert facts["receipt"] == {"by": "box-1", "to": "memory", "topic": "orders"}
    received = [(one["consumer"], one["state"], "error" in one) for one in facts["received"]]
    assert received == [("payments/charge", "done", False), (None, None, False), (None, None, True)]
    told = [moment["what"] for moment in facts["timeline"]]
    assert told[1:4] == [
        "written to the outbox",
        "done: sent by box-1, confirmed by memory topic orders",
        f"received by inbox payments/charge ({urls[1]})",
    ]
    assert told[4] == f"not received by {urls[2]}: no inbox row, or it was pruned"
    assert told[5].startswith("unknown whether postgresql://anna:***@127.0.0.1:1/x received it")
    text = call("show", "e", *options, cwd=tmp_path).stdout
    assert "received by inbox payments/charge" in text
    assert "secret" not in text
