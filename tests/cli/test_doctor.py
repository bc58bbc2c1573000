"""`postroom doctor`: each finding says what, why and what to do."""

from __future__ import annotations

import json
import socket
import sqlite3
import sys

import pytest
from click.testing import CliRunner

from postroom.admin.diagnosis import judge_poll, judge_stream
from postroom.brokers.kafka.checks import Topic, judge_topic
from postroom.cli.app import cli
from postroom.cli.doctor_brokers import check_broker, judge_memory
from postroom.event import Event
from postroom.lookup import Stats
from postroom.model.url import Url
from postroom.record import LANES
from postroom.settings import RelaySettings
from postroom.store import Lease, Member, Membership
from postroom.stores.sqlite import checks
from tests.cli.command import Running, call

NOTHING = {"pending": 0, "processing": 0, "done": 0, "failed": 0, "dead": 0}
ALL_HELD = tuple(Lease(n, "a", 1, True) for n in range(LANES))
WELL = Membership((Member("a", True, "one"),), ALL_HELD)


def findings(stats=None, membership=WELL, **settings):
    stats = stats or Stats(NOTHING, 0.0, 0)
    return [
        (f.level, f.what)
        for f in judge_stream("main", stats, membership, RelaySettings(**settings))
    ]


def test_a_healthy_stream_has_no_finding():
    assert findings() == []
    assert findings(Stats({**NOTHING, "pending": 5, "done": 10**6}, 3.0, 0)) == []


@pytest.mark.parametrize(
    ("stats", "membership", "expected"),
    [
        (Stats({**NOTHING, "pending": 7}, 3.0, 0), Membership((), ()),
         ("error", "7 events to be sent in stream main, and no relay serves it")),
        (None, Membership((), (Lease(0, "x", 1, True),)),
         ("warning", "1 lane of stream main leased by a relay without a heartbeat")),
        (None, Membership((Member("a", True, "one"),), ALL_HELD[:60]),
         ("warning", "4 lanes of stream main without an owner")),
        (None, Membership((Member("a", True, "one"), Member("b", True, "one")), ALL_HELD),
         ("warning", "2 relays of stream main are named 'one'")),
        (None, Membership((Member("a", False, "one"),), ALL_HELD),
         ("warning", "relay one of stream main is unhealthy")),
        (Stats(NOTHING, 90.0, 0), WELL,
         ("warning", "the oldest event due in stream main is 90 s old")),
        (Stats({**NOTHING, "dead": 3}, 0.0, 0), WELL,
         ("warning", "3 dead letters in stream main")),
        (Stats(NOTHING, 0.0, 2), WELL,
         ("info", "2 keys of stream main blocked by a failed event")),
    ],
)  # fmt: skip
def test_what_is_odd_about_a_stream(stats, membership, expected):
    assert findings(stats, membership) == [expected]


def test_a_poll_interval_explains_some_lag():
    late = Stats(NOTHING, 90.0, 0)
    assert findings(late, poll_seconds=60.0) == []
    assert findings(late, poll_seconds=1.0) != []


def test_a_long_poll_of_a_store_that_does_not_call():
    (late,) = judge_poll(RelaySettings(poll_seconds=60.0), hears=False)
    assert (late.level, late.what) == ("warning", "relays of stream main poll every 60 s")
    assert list(judge_poll(RelaySettings(poll_seconds=60.0), hears=True)) == []
    assert list(judge_poll(RelaySettings(), hears=False)) == []


def test_retention_below_an_hour_is_mentioned():
    assert findings(keep_done_seconds=60.0)[0][0] == "info"
    assert findings(keep_done_seconds=0.0) == []


async def test_a_broker_that_is_away_and_one_that_makes_no_sense():
    (away,) = await check_broker(
        Url.parse("amqp://u:s3cret@127.0.0.1:1/?exchange=x"), RelaySettings()
    )
    assert away.level == "warning"
    assert away.what.startswith("amqp://u:***@127.0.0.1:1/?exchange=x is unreachable: ")
    (wrong,) = await check_broker(Url.parse("kafkaa://k"), RelaySettings())
    assert (wrong.level, "did you mean 'kafka'?" in wrong.what) == ("error", True)
    assert await check_broker(Url.parse("null:"), RelaySettings()) == []


@pytest.mark.promise("K2")
def test_a_sound_topic_and_one_that_cannot_be_looked_at():
    sound = {
        "max.message.bytes": "1048588", "min.insync.replicas": "2", "cleanup.policy": "delete",
        "unclean.leader.election.enable": "false",
    }  # fmt: skip
    assert list(judge_topic("t", Topic("", 3, sound))) == []
    assert list(judge_topic("t", Topic("", 3, {}))) == []
    (tight,) = judge_topic("t", Topic("", 2, sound))
    assert tight.what == "topic 't' has 2 replicas and min.insync.replicas=2"
    assert (tight.level, "single broker" in tight.why) == ("warning", True)
    (weak,) = judge_topic("t", Topic("", 1, sound | {"min.insync.replicas": "1"}))
    assert (weak.level, weak.what) == ("warning", "topic 't' has min.insync.replicas=1")
    (stuck,) = judge_topic("t", Topic("", 1, sound))
    assert (stuck.level, stuck.what) == (
        "error",
        "topic 't' has 1 replicas and min.insync.replicas=2",
    )


def test_a_cluster_of_one_broker_is_not_told_to_have_three_replicas():  # U21
    (missing,) = judge_topic("t", Topic("there is no such topic", brokers=1))
    assert missing.fix.endswith("--replication-factor 1")
    (missing,) = judge_topic("t", Topic("there is no such topic", brokers=5))
    assert missing.fix.endswith("--replication-factor 3")
    (one,) = judge_topic("t", Topic("", 1, {"min.insync.replicas": "1"}, brokers=1))
    assert (one.level, one.what) == ("info", "topic 't' is in a cluster of one broker")
    (stuck,) = judge_topic("t", Topic("", 1, {"min.insync.replicas": "2"}, brokers=1))
    assert (stuck.level, "min.insync.replicas=1" in stuck.fix) == ("error", True)


async def test_a_broker_that_does_not_answer_is_a_sentence(monkeypatch):  # U21
    monkeypatch.setattr("postroom.cli.doctor_brokers._PATIENCE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it never accepts
        url = f"amqp://127.0.0.1:{silent.getsockname()[1]}/"
        (found,) = await check_broker(Url.parse(url), RelaySettings())
    assert found.what == f"{url} did not answer within 0.2 s"
    (refused,) = await check_broker(Url.parse("amqp://127.0.0.1:1/"), RelaySettings())
    assert "Error:" not in refused.what.partition("unreachable: ")[2].partition("connecting")[0]


@pytest.mark.promise("G6")
def test_a_memory_that_is_long_enough():
    assert list(judge_memory("t", None, 1.0)) == []
    assert list(judge_memory("t", 86_400.0, 86_400.0)) == []
    (short,) = judge_memory("t", 864_000.0, 86_400.0)
    assert short.fix == "set dedup_seconds = 950400 in its [[consumer]] section"
    (never,) = judge_memory("t", float("inf"), 86_400.0)
    assert never.what == "t keeps messages forever; the inbox keeps ids for 1.0 days"


def test_the_file_is_examined(tmp_path, sqlite_place, monkeypatch):
    sqlite_place.migrate()
    assert sqlite_place(checks.examine) == []
    conn = sqlite3.connect(tmp_path / "app.db")
    conn.execute("DROP INDEX postroom_outbox_done")
    conn.commit()
    (missing,) = sqlite_place(checks.examine)
    assert (missing.level, missing.what) == ("error", "the index postroom_outbox_done is missing")
    conn.execute("PRAGMA journal_mode = DELETE")
    assert "journal mode is delete" in sqlite_place(checks.examine)[0].what
    conn.close()


def test_a_log_that_grew(tmp_path):
    assert checks.check_wal(tmp_path / "x.db") == []
    with (tmp_path / "x.db-wal").open("wb") as log:
        log.truncate(300_000_000)
    assert checks.check_wal(tmp_path / "x.db")[0].level == "warning"


def test_the_command(tmp_path, sqlite_place):
    sqlite_place.migrate()
    store = ("--store", sqlite_place.url)
    done = call("doctor", *store, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{sqlite_place.url}: no problems found\n")
    sqlite_place.add(Event("e", id="e"))
    bad = call("doctor", *store, cwd=tmp_path)
    assert bad.returncode == 1
    assert bad.stdout.startswith(
        "ERROR    1 event to be sent in stream main, and no relay serves it\n"
    )
    assert (
        "         why: no event of this stream is delivered\n"
        "         fix: postroom run --stream main --broker …" in bad.stdout
    )
    assert max(map(len, bad.stdout.splitlines())) <= 80
    (tmp_path / "postroom.toml").write_text(
        'broker = "amqp://u:s3cret@127.0.0.1:1/?exchange=x"\n[[consumer]]\n'
        'source = "amqp://u:s3cret@127.0.0.1:1/?queue=q"\nhandlers = "handlers:shop:handlers"\n'
    )
    told = [
        json.loads(line)
        for line in call("doctor", *store, "--json", cwd=tmp_path).stdout.splitlines()
    ]
    assert [finding["level"] for finding in told] == ["error", "warning", "warning"]
    assert "?queue=q is unreachable" in told[2]["what"]
    assert "s3cret" not in str(told)


@pytest.mark.parametrize(
    "broker",
    ["handlers:evil:h", "kafka://127.0.0.1:1?plugin.library.paths=./evil.so"],
    ids=["handlers", "plugin"],
)
def test_it_runs_no_code_that_only_the_current_folder_asks_for(tmp_path, sqlite_place, broker):
    # X-M6
    sqlite_place.migrate()
    (tmp_path / "evil.py").write_text(
        "open('ran', 'w')\nfrom postroom import Handlers\nh = Handlers()"
    )
    (tmp_path / "postroom.toml").write_text(
        f'broker = "{broker}"\n[[consumer]]\nsource = "{broker.replace("?", "?topic=t&group=g&")}"\n'
        'handlers = "handlers:evil:h"\n'
        if "kafka" in broker
        else f'broker = "{broker}"\n'
    )
    store = ("--store", sqlite_place.url)
    done = call("doctor", *store, "--json", cwd=tmp_path)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {finding["level"] for finding in told} == {"info"}
    assert all("was not checked" in finding["what"] for finding in told)
    fix = "if you trust the file: postroom --config postroom.toml doctor"
    assert {f["fix"] for f in told} == {fix}
    assert not (tmp_path / "ran").exists()
    if "handlers" in broker:
        named = call("--config", "postroom.toml", "doctor", *store, cwd=tmp_path)
        assert named.returncode == 0
        assert (tmp_path / "ran").exists()
        (tmp_path / "ran").unlink()
        call("doctor", *store, cwd=tmp_path, POSTROOM_BROKER=broker)
        assert (tmp_path / "ran").exists()


def test_it_imports_no_handlers_that_only_the_current_folder_names(
    tmp_path, monkeypatch, sqlite_place
):  # X-M6
    sqlite_place.migrate()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "evil_here.py").write_text("open('ran', 'w').close()\nh = 1\n")
    (tmp_path / "postroom.toml").write_text('broker = "handlers:evil_here:h"\n')
    done = CliRunner().invoke(cli, ["doctor", "--store", sqlite_place.url])
    assert "was not checked" in done.output
    assert not (tmp_path / "ran").exists()


def test_health_finds_the_relay_of_this_host(tmp_path, sqlite_place):
    sqlite_place.migrate()
    store = ("--store", sqlite_place.url)
    with Running("run", *store, "--broker", "null:", cwd=tmp_path) as relay:
        relay.hear("change=taken")
        assert call("health", *store, cwd=tmp_path).stdout == "healthy\n"
        other = call("health", *store, "--name", "box-9", cwd=tmp_path)
        assert (other.returncode, "no heartbeat from a relay 'box-9'" in other.stdout) == (1, True)
        assert call("doctor", *store, cwd=tmp_path).returncode == 0
        relay.send()
        assert relay.end() == 0
    gone = call("health", *store, "--json", cwd=tmp_path)
    assert gone.returncode == 1
    assert json.loads(gone.stdout)["problems"] == ["no heartbeat from a relay on this host"]
    away = call("health", "--store", "postgresql://u:s3cret@127.0.0.1:1/x", cwd=tmp_path)
    assert away.returncode == 1
    assert "s3cret" not in away.stdout + away.stderr
