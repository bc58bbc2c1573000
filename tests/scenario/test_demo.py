"""The demo, as `make demo` runs it, with few orders."""

from __future__ import annotations

import json
import os
import select
import signal

import pytest

from tests.cli.command import PATIENCE_SECONDS, Running, call

pytestmark = pytest.mark.slow


def gone(watched):
    """Wait until all of these processes have ended."""
    for descriptor in watched:
        ready, _, _ = select.select([descriptor], [], [], PATIENCE_SECONDS)
        assert ready, "a process of the demo outlived it"
        os.close(descriptor)


def watch(demo, *names):
    """Return a handle for each of these processes, once it was started."""
    return [os.pidfd_open(int(demo.hear(rf"{name} +process (\d+)")[1])) for name in names]


@pytest.mark.req("S5.6", "S1.4", "S3.4", "S4.6")
@pytest.mark.promise("G1", "G2", "G3", "G4", "G6")
def test_every_promise_holds_over_a_kill(tmp_path):
    done = call(
        "demo", "--orders", "30", "--seed", "1", "--json", cwd=tmp_path, TMPDIR=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["written"] == told["delivered"] == told["applied"] == 150
    assert told["orders"] == 30
    assert told["rolled_back"] > 0
    assert told["repeated_by_kill"] > 0
    assert told["problems"] == []
    assert told["promises"] == {
        "never_seen": True,
        "nothing_lost": True,
        "applied_once": True,
        "order_kept": True,
        "same_end": True,
    }
    assert "the first relay is dead" in done.stderr
    assert "has taken over" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_its_files_stay_where_one_wants_them(tmp_path):
    done = call("demo", "--orders", "1", "--dir", "here % ?", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (
        "  order kept                         1  ✓ orders, events in order of writing\n"
        in done.stdout
    )
    assert done.stdout.endswith("wire.py shows a broker adapter.\n")
    assert {"shop.db", "receiver.db", "shop.log"} <= {
        p.name for p in (tmp_path / "here % ?").iterdir()
    }
    again = call("demo", "--orders", "1", "--dir", "here % ?", cwd=tmp_path)
    assert again.returncode == 2
    assert again.stderr == "postroom: --dir: here % ? is not empty; name a new folder\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_no_process_and_no_file(tmp_path, number):
    with Running("demo", "--orders", "9999", cwd=tmp_path, TMPDIR=str(tmp_path)) as demo:
        watched = watch(demo, "receiver", "first relay", "shop")
        demo.send(number)
        assert demo.end() == 130
        gone(watched)
    assert "Traceback" not in "".join(demo.lines)
    assert demo.out == []
    assert list(tmp_path.iterdir()) == []


def test_killed_it_leaves_no_process(tmp_path):
    with Running("demo", "--orders", "9999", "--dir", "here", cwd=tmp_path) as demo:
        watched = watch(demo, "receiver", "first relay", "shop")
        demo.send(signal.SIGKILL)
        assert demo.end() == -signal.SIGKILL
        gone(watched)


def test_a_process_that_dies_by_itself_is_told(tmp_path):
    with Running("demo", "--orders", "9999", cwd=tmp_path, TMPDIR=str(tmp_path)) as demo:
        pid = int(demo.hear(r"receiver +process (\d+)")[1])
        demo.hear("shop +process")
        os.kill(pid, signal.SIGKILL)
        assert demo.end() == 1
    (folder,) = tmp_path.iterdir()  # kept, to be looked at
    assert demo.lines[-1] == (
        "postroom: the receiver ended unexpectedly with code -9: its log is empty; "
        f"the files are in {folder}\n"
    )


def test_a_reader_that_went_away_is_no_broken_promise(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = call(
            "demo", "--orders", "1", "--json", cwd=tmp_path, stdout=writer, TMPDIR=str(tmp_path)
        )
    finally:
        os.close(writer)
    assert done.returncode == 141
    assert "report" not in done.stderr
    assert list(tmp_path.iterdir()) == []
