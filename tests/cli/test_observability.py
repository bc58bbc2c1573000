"""What a running relay shows: metrics, health, logs. And what none of them may show."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.error
import urllib.request

import pytest

from postroom.event import Event
from postroom.telemetry.metric_names import documented
from tests.cli.command import Running, call

CANARY = "c4nary-s3cret"
APP = """
from postroom.engine.handlers.handlers import Handlers
from postroom.errors import Reject
from postroom.event import Event
from postroom.outbox import Outbox

handlers = Handlers()
outbox = Outbox()
tries = []

@handlers.on("good")
async def good(event, tx):
    await outbox.add(tx, Event("echo", {}, topic="echoes"))

@handlers.on("echo")
async def echo(event, tx):
    pass

@handlers.on("bad")
async def bad(event, tx):
    raise Reject("password=c4nary-s3cret of \\x1b[31m" + event.id)

@handlers.on("shaky")
async def shaky(event, tx):
    tries.append(event.id)
    if len(tries) < 2:
        raise ConnectionError("amqp://user:c4nary-s3cret@host refused")
"""


def fetch(port, path):
    """Return the status and the body of an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def value(metrics, name, **labels):
    """Return the number of one line of metrics; 0 if it is not there."""
    for line in metrics.splitlines():
        found = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
        if found and all(f'{k}="{v}"' in (found[1] or "") for k, v in labels.items()):
            return float(found[2])
    return 0.0


@pytest.fixture
def busy(tmp_path, sqlite_place):
    """A relay that has delivered, failed, buried and blocked."""
    sqlite_place.migrate()
    (tmp_path / "busy_app.py").write_text(APP)
    sqlite_place.add(
        *(
            Event("good", {"card": "4711-0815"}, id=f"g{n}", key="k", topic="goods")
            for n in range(5)
        ),
        Event("bad", id="b", key="b"),
        Event("shaky", id="s", key="s"),
        Event("nobody.handles.this", id="n"),
    )
    arguments = (
        "run", "--store", sqlite_place.url, "--broker", "handlers:busy_app:handlers",
        "--metrics-port", "0", "--log-level", "debug", "--log-format", "json", "--name", "box-1",
    )  # fmt: skip
    with Running(*arguments, cwd=tmp_path, POSTROOM_BACKOFF_SECONDS="0.01") as relay:
        port = int(relay.hear('"event": "metrics".*"port": (\\d+)')[1])
        relay.hear('"event": "alarm"')

        def quiet():
            _, metrics = fetch(port, "/metrics")
            done = value(metrics, "outbox_done_total", stream="main")
            seen = value(metrics, "postroom_events", state="done")  # by its last look at the store
            return metrics if done == seen == 11 else ""

        yield relay, port, quiet
        if relay.process.poll() is None:
            relay.send()
            assert relay.end() == 0


def until(question):
    """Ask until the answer is there; the relay's first look at the store is due in a moment."""
    import time

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if found := question():
            return found
        time.sleep(0.05)
    raise AssertionError("it never came")


@pytest.mark.slow
@pytest.mark.req("S2.7", "S4.9")
def test_metrics_and_health_of_a_busy_faulty_relay(busy):
    relay, port, quiet = busy
    metrics = until(quiet)
    assert value(metrics, "outbox_new_total", stream="main") == 5  # the echoes, added here
    assert value(metrics, "postroom_events_added_total", stream="main", type="echo") == 5
    assert (
        value(metrics, "postroom_events_confirmed_total", destination="handlers", topic="goods")
        == 5
    )
    assert value(metrics, "postroom_events_confirmed_total", topic="echoes") == 5
    assert value(metrics, "postroom_events_dead_total", stream="main") == 1
    assert value(metrics, "outbox_failed_total", stream="main") >= 3
    assert value(metrics, "postroom_events_failed_total", verdict="rejected") == 1
    assert value(metrics, "postroom_events_failed_total", verdict="failed") == 1
    assert value(metrics, "postroom_events_failed_total", verdict="misconfigured") >= 1
    assert value(metrics, "postroom_delivery_lag_seconds_count", stream="main") == 11
    assert value(metrics, "postroom_lanes_owned", stream="main") == 64
    assert value(metrics, "postroom_lanes_free", stream="main") == 0
    assert value(metrics, "postroom_relays", stream="main") == 1
    assert value(metrics, "postroom_events", state="failed") == 1
    assert value(metrics, "postroom_up", stream="main") == 1

    # Every documented name is there, and nothing else; Prometheus has nothing to say about it.
    # Those of consumers are in test_consumer_metrics.
    names = set(re.findall(r"^# TYPE (\S+)", metrics, re.MULTILINE))
    received = {name for name in documented() if re.search("_(messages|consumer|handling)_", name)}
    assert names == set(documented()) - received
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=metrics, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    for secret in (CANARY, "4711-0815", '"g1"', '"k"'):
        assert secret not in metrics

    status, body = fetch(port, "/livez")
    assert (status, set(json.loads(body))) == (200, {"loop_silent_seconds"})
    status, body = fetch(port, "/readyz")
    ready = json.loads(body)
    assert (status, ready["ready"], ready["problems"]) == (200, True, [])
    assert ready["warnings"][-1] == "stream main has 1 dead letter"
    assert ready["relays"][0]["lanes"] == 64
    assert ready["relays"][0]["counts"]["done"] == 11
    assert fetch(port, "/")[0] == 404
    relay.send()
    assert relay.end() == 0

    # Logs: one JSON object a line, every attempt, no payload and no secret.
    told = [json.loads(line) for line in relay.lines]
    assert all({"at", "level", "logger", "event"} <= set(line) for line in told)
    attempts = [line for line in told if line["event"] == "attempt"]
    assert {line["verdict"] for line in attempts} == {"rejected", "failed", "misconfigured"}
    said = "".join(relay.lines)
    assert CANARY not in said
    assert "4711-0815" not in said
    assert "\x1b" not in said


def test_a_loop_that_hangs_is_not_alive(tmp_path, sqlite_place):
    sqlite_place.migrate()
    (tmp_path / "stuck_app.py").write_text(
        "import time\n"
        "from postroom.engine.handlers.handlers import Handlers\n"
        "from postroom.telemetry import health\n"
        "health._STUCK_SECONDS = 0.7\n"
        "handlers = Handlers()\n"
        "@handlers.on('hang')\n"
        "async def hang(event, tx):\n"
        "    time.sleep(20)\n"
    )
    arguments = ("run", "--store", sqlite_place.url, "--broker", "handlers:stuck_app:handlers")
    with Running(*arguments, "--metrics-port", "0", cwd=tmp_path) as relay:
        port = int(relay.hear(r"metrics host=127.0.0.1 port=(\d+)")[1])
        relay.hear("change=taken")
        assert fetch(port, "/livez")[0] == 200
        sqlite_place.add(Event("hang", id="h"))
        assert until(lambda: fetch(port, "/livez")[0] == 503)
        assert "the event loop is stuck" in fetch(port, "/readyz")[1]


def test_a_store_that_is_away_is_not_ready_and_a_broker_that_is_away_is(tmp_path, sqlite_place):
    away = ("--store", f"postgresql://app:{CANARY}@127.0.0.1:1/shop", "--broker", "null:")
    with Running("run", *away, "--metrics-port", "0", cwd=tmp_path) as relay:
        port = int(relay.hear(r"metrics host=\S+ port=(\d+)")[1])
        relay.hear("trouble .*opening the store")
        status, body = fetch(port, "/readyz")
        assert status == 503
        assert "is not running; check its store" in body
        assert fetch(port, "/livez")[0] == 200
        relay.send()
        assert relay.end() == 0
    assert CANARY not in "".join(relay.lines)

    sqlite_place.migrate()
    sqlite_place.add(Event("e", id="e"))
    broker = f"amqp://app:{CANARY}@127.0.0.1:1/?exchange=x"
    arguments = ("run", "--store", sqlite_place.url, "--broker", broker, "--metrics-port", "0")
    with Running(*arguments, "--log-level", "debug", cwd=tmp_path) as relay:
        port = int(relay.hear(r"metrics host=\S+ port=(\d+)")[1])
        relay.hear("breaker .*state=open")

        def warned():
            status, body = fetch(port, "/readyz")
            return (
                body
                if status == 200 and "destination of stream main is unreachable" in body
                else ""
            )

        body = until(warned)
        _, metrics = fetch(port, "/metrics")
        assert value(metrics, "postroom_breaker_open", destination="amqp") == 1
        relay.send(signal.SIGTERM)
        relay.end()
    assert CANARY not in "".join(relay.lines) + body + metrics


def test_a_port_that_is_taken_or_makes_no_sense(tmp_path, sqlite_place):
    import socket

    sqlite_place.migrate()
    arguments = ("run", "--store", sqlite_place.url, "--broker", "null:", "--metrics-port")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = call(*arguments, str(taken.getsockname()[1]), cwd=tmp_path)
        assert done.returncode == 2
        assert "cannot listen on 127.0.0.1" in done.stderr
    done = call(*arguments, "70000", cwd=tmp_path)
    assert "--metrics-port: metrics_port must be from 0 to 65535" in done.stderr
    assert done.returncode == 2


def test_without_prometheus_client_it_says_what_to_install(tmp_path, sqlite_place):
    sqlite_place.migrate()
    (tmp_path / "prometheus_client.py").write_text("raise ImportError('not here')\n")
    arguments = ("run", "--store", sqlite_place.url, "--broker", "null:", "--metrics-port", "0")
    done = call(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "prometheus-client is not installed: pip install 'postroom[metrics]'" in done.stderr


def test_streams_with_brokers_of_their_own_in_one_process(tmp_path, sqlite_place):
    sqlite_place.migrate()
    (tmp_path / "busy_app.py").write_text(APP)
    (tmp_path / "postroom.toml").write_text(
        f'store = "{sqlite_place.url}"\nlog_level = "debug"\n'
        '[[relay]]\nstream = "main"\nbroker = "null:"\n'
        '[[relay]]\nstream = "mail"\nbroker = "handlers:busy_app:handlers"\n'
    )
    sqlite_place.add(Event("e", id="one"), Event("echo", id="two", stream="mail"))
    with Running("run", cwd=tmp_path) as relays:
        relays.hear("starting .*stream=main .*broker=null:")
        relays.hear("starting .*stream=mail .*broker=handlers:busy_app:handlers")
        heard = {relays.hear("settled stream=(main|mail) done=1")[1] for _ in range(2)}
        assert heard == {"main", "mail"}
        relays.send()
        assert relays.end() == 0
    said = "".join(relays.lines)
    assert "stopped stream=main how=gracefully done=1" in said
    assert "stopped stream=mail how=gracefully done=1" in said


def test_one_that_cannot_run_takes_the_others_with_it(tmp_path, sqlite_place):
    sqlite_place.migrate()
    (tmp_path / "postroom.toml").write_text(
        f'store = "{sqlite_place.url}"\n'
        '[[relay]]\nbroker = "null:"\n[[relay]]\nstream = "mail"\nbroker = "handlers:none:h"\n'
    )
    done = call("run", cwd=tmp_path)
    assert done.returncode == 2
    assert "no module 'none'" in done.stderr


def test_config_show_says_where_values_come_from(tmp_path):
    (tmp_path / "postroom.toml").write_text(
        f'store = "postgresql://app:{CANARY}@db/shop"\nbatch_size = 7\n'
    )
    done = call("config", "show", cwd=tmp_path, POSTROOM_POLL_SECONDS="3")
    assert done.returncode == 0
    assert "  store                postgresql://app:***@db/shop  (postroom.toml:1)\n" in done.stdout
    assert "  batch_size             7  (postroom.toml:2)\n" in done.stdout
    assert "  poll_seconds           3.0  (POSTROOM_POLL_SECONDS)\n" in done.stdout
    told = json.loads(call("config", "show", "--json", cwd=tmp_path).stdout)
    assert told["relays"][0]["batch_size"] == {"value": 7, "source": "postroom.toml:2"}
    assert set(told) == {"process", "relays", "consumers"}
    assert CANARY not in done.stdout + str(told)
    other = tmp_path / "other.toml"
    other.write_text("bach_size = 3\n")
    wrong = call("--config", str(other), "config", "show", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "other.toml:1: unknown key 'bach_size'; did you mean 'batch_size'?" in wrong.stderr
    assert len(wrong.stderr.splitlines()) == 1
