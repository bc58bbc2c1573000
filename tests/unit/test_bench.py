"""The benchmarks' own parts: results, rounds, plots, resuming. No test here measures anything."""

import asyncio
import json
import struct
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from bench import __main__ as front
from bench import page, plot, suites
from bench.crew import CountingBroker
from bench.peers import environment
from bench.peers.catalog import PEERS
from bench.peers.scripts.stage import Seen, disorder, events
from bench.result import append, beside, load_file, table
from bench.rounds import Contest, alternate
from bench.yard import Yard

FIELDS = {"suite": "relay", "part": "sqlite", "events": 1_000, "batch": 500}


def result(**fields):
    figures = {"ours": [80.0, 100.0, 90.0], "theirs": [30.0, 20.0, 40.0]}
    return beside(figures, "ours", "theirs", **{**FIELDS, **fields})


def test_a_result_is_the_median_with_its_spread_beside_the_reference():
    found = result()
    assert (found.ours, found.reference, found.ratio) == (90.0, 30.0, 3.0)
    assert (found.spread, found.reference_spread) == ((80.0, 100.0), (20.0, 40.0))
    assert (found.against, found.rounds, found.unit) == ("theirs", 3, "events/s")
    assert found.machine
    assert found.measured_at


def test_a_line_of_json_says_all_and_can_be_read_again(tmp_path):
    one = result(series=((1.0, 2.0), (3.0, 4.0)), versions={"python": "3"}, note="é")
    append(tmp_path / "r", [one])
    append(tmp_path / "r", [one])
    assert load_file(tmp_path / "r") == [one, one]
    fields = json.loads((tmp_path / "r").read_text().splitlines()[0])
    assert fields["ratio"] == 3.0
    wanted = {"name", "ours", "reference", "ratio", "spread", "events", "batch", "relays"}
    assert wanted | {"versions", "machine"} <= fields.keys()


def test_a_file_that_is_not_there_has_no_results(tmp_path):
    assert load_file(tmp_path / "nothing") == []


def test_the_table_has_a_block_for_each_part_and_says_a_note_once():
    text = table([result(note="n"), result(note="n"), result(part="mongo")])
    assert text.count("relay: sqlite (1,000 events, batch 500") == 1
    assert text.count("relay: mongo") == 1
    assert text.count("3.00 × theirs (30, 20–40)") == 3
    assert text.count("\n      n") == 1


def test_rounds_alternate_and_begin_with_another_one_each_time():
    seen = []

    def contest(name):
        return Contest(name, lambda: seen.append(name) or 1.5, lambda: seen.append(f"{name}!"))

    assert alternate([contest("a"), contest("b")], 2) == {"a": [1.5, 1.5], "b": [1.5, 1.5]}
    assert seen == ["a!", "a", "b!", "b", "b!", "b", "a!", "a"]


def test_work_that_was_not_done_has_no_figure():
    with pytest.raises(RuntimeError, match="did 9 of 10"):
        alternate([Contest("a", lambda: 9, expected=10)], 1)


def test_a_count_becomes_a_rate():
    [rate] = alternate([Contest("a", lambda: 10, expected=10)], 1)["a"]
    assert rate > 10


def test_a_chart_is_xml_with_a_line_for_each_curve():
    curves = {"a < b": [(0, 0), (10, 5)], "c": [(0, 1), (5, 2)]}
    tree = ElementTree.fromstring(plot.chart("t", "x", "y", curves))
    lines = [one for one in tree if one.tag.endswith("polyline")]
    assert len(lines) == 2
    assert "a < b" in [one.text for one in tree]
    # From the lower left corner to the upper right one: 10 and 5 are the most.
    assert lines[0].get("points") == "80.0,360.0 740.0,40.0"


@pytest.mark.parametrize(
    ("most", "wanted"),
    [(0, [0, 1]), (10, [0, 2, 4, 6, 8, 10]), (7, [0, 2, 4, 6, 8]), (1_200, [0, 500, 1_000, 1_500])],
)
def test_ticks_are_round_and_reach_the_most(most, wanted):
    assert plot.ticks(most) == wanted


def test_a_plot_is_written_only_where_it_is_wanted(tmp_path):
    plot.write(None, "p", "t", "x", "y", curves={"c": [(0, 1)]})
    plot.write(tmp_path / "new", "p", "t", "x", "y", curves={"c": [(0, 1)]})
    assert [one.name for one in (tmp_path / "new").iterdir()] == ["p.svg"]


class Parts:
    """Two suites: the first has a part that fails."""

    def __init__(self):
        self.ran = []

    def __call__(self, suite):
        if suite == "relay":
            return {"sqlite": self.one("relay", "sqlite"), "mongo": self.fail}
        return {"kafka": self.one(suite, "kafka")}

    def one(self, suite, part):
        def measure(yard):
            self.ran.append(part)
            yard.enter(Watched(self.ran))
            return [result(suite=suite, part=part, quick=yard.quick)]

        return measure

    def fail(self, yard):
        self.ran.append("mongo")
        raise RuntimeError("no server")


class Watched:
    def __init__(self, ran):
        self.ran = ran

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ran.append("stopped")


@pytest.fixture
def parts(monkeypatch):
    made = Parts()
    monkeypatch.setattr(suites, "parts", made)
    return made


def test_a_part_that_fails_is_told_of_and_the_others_run(parts, tmp_path, capsys):
    path = tmp_path / "r.jsonl"
    assert front.main(["relay", "limits", "--quick", "--json", str(path)]) == 1
    assert parts.ran == ["sqlite", "stopped", "mongo", "kafka", "stopped"]
    assert "relay: mongo failed: no server" in capsys.readouterr().out
    assert [one.part for one in load_file(path)] == ["sqlite", "kafka"]


def test_a_run_goes_on_where_it_was(parts, tmp_path):
    path = tmp_path / "r.jsonl"
    append(path, [result(suite="relay", part="sqlite", quick=True), result(part="mongo")])
    words = ["relay", "limits", "--resume", "--json", str(path)]
    assert front.main([*words, "--quick"]) == 1
    assert parts.ran == ["mongo", "kafka", "stopped"], "sqlite is there; mongo is of a full run"
    parts.ran.clear()
    assert front.main([*words, "--only", "s*"]) == 0
    assert parts.ran == ["sqlite", "stopped"], "what was quick does not stand for a full run"


def test_resuming_needs_a_file(parts):
    with pytest.raises(SystemExit, match="--json FILE"):
        front.main(["--resume"])


def test_an_unknown_suite_is_refused(capsys):
    with pytest.raises(SystemExit):
        front.main(["speed"])
    assert "no suite speed; some of: add, relay, handlers, consume" in capsys.readouterr().err


def test_every_suite_has_parts(capsys):
    assert front.main(["--list"]) == 0
    listed = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert list(listed) == list(suites.SUITES)
    assert listed["peers"] == (
        "packages, packages-kafka, kafka-by-hand, rabbitmq-by-hand, mongo-claims, debezium"
    )


def test_sizes_of_a_quick_run():
    assert Yard(quick=True).size(10, 1) == 1
    assert Yard().size(10, 1) == 10


def test_every_peer_is_pinned():
    assert {peer.package: environment.pinned(peer.package) for peer in PEERS} == {
        "txoutbox": "0.2.2",
        "pgqueuer": "1.6.0",
        "faststream-outbox": "0.19.0",
        "procrastinate": "3.10.0",
        "omni-box": "0.3.1",
        "pactix": "0.2.0",
    }


def test_a_peer_runs_on_this_python_if_it_can():
    assert environment.python_for((3, 11)) == sys.executable


def test_a_peer_that_no_python_here_can_run_is_told_of(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(environment.NoPythonError, match=r"no Python 3\.99 or newer"):
        environment.python_for((3, 99))


async def test_the_publisher_that_does_nothing_says_when_it_is_enough():
    seen = Seen(2)
    seen("a")
    assert not seen.enough
    seen("b")
    await seen.wait()
    assert seen.items == ["a", "b"]
    assert seen.at > 0


def test_events_that_came_too_late_are_counted():
    made = [payload for _, payload in events(6, 2)]
    assert [(one["key"], one["n"]) for one in made[:3]] == [("k0", 0), ("k1", 1), ("k0", 2)]
    assert disorder(made) == 0
    assert disorder([made[0], made[4], made[2], made[1]]) == 1


def test_the_last_full_result_of_a_name_is_on_the_page():
    old, new = (
        result(measured_at="2026-01-01 10:00 UTC"),
        result(measured_at="2026-01-02 10:00 UTC"),
    )
    found = page.latest([result(part="mongo", quick=True), old, result(suite="add"), new])
    assert [(one.suite, one.measured_at[:10]) for one in found][1] == ("relay", "2026-01-02")
    assert [one.suite for one in found] == ["add", "relay"]
    text = page.page(found)
    assert text.count("| ours | 90 events/s | 80–100 | theirs | 30 | 20–40 | **3.00** |") == 2
    assert text.index("### What `add` costs") < text.index("### A relay beside the bare driver")


def test_notes_are_numbered_below_their_table():
    text = page.page([result(note="slow"), result(name="other", note="slow"), result(note="fast")])
    assert "| other (1) |" in text
    assert text.endswith("\n1. slow\n2. fast\n")


def test_results_go_between_the_marks_of_a_page(tmp_path):
    file, path = tmp_path / "r.jsonl", tmp_path / "page.md"
    append(file, [result()])
    path.write_text(f"# P\n\n{page.BEGIN}\nold\n{page.END}\n\nend\n")
    for _ in range(2):
        assert page.main([str(file), "--into", str(path)]) == 0
    text = path.read_text()
    assert "old" not in text
    assert text.startswith(f"# P\n\n{page.BEGIN}\nMeasured from ")
    assert text.endswith(f"{page.END}\n\nend\n")
    assert text.count("### ") == 1


def test_a_page_without_marks_is_left_alone(tmp_path):
    with pytest.raises(SystemExit, match="no place"):
        page.insert("# P\n", "tables")


def test_plots_stand_in_a_folder_beside_the_page(tmp_path):
    file, path, plots = tmp_path / "r.jsonl", tmp_path / "page.md", tmp_path / "plots"
    append(file, [result(suite="growth"), result(suite="peers")])
    path.write_text(f"{page.BEGIN}\n{page.END}\n")
    plots.mkdir()
    (plots / "soak-memory.svg").write_text("<svg/>")
    assert page.main([str(file), "--into", str(path), "--plots", str(plots)]) == 0
    growth, peers = path.read_text().split("### Beside")
    assert "![soak memory](page/soak-memory.svg)" in growth
    assert "soak" not in peers
    assert (tmp_path / "page" / "soak-memory.svg").exists()


def test_a_relay_of_a_crew_says_how_many_it_has_sent_and_whether_in_order(tmp_path):
    counts = tmp_path / "counts"
    counts.write_bytes(bytes(32))
    broker = CountingBroker(counts, 1, slow=0.0)
    batch = [SimpleNamespace(seq=seq, key_hash=b"k") for seq in (1, 2, 4, 3)]
    asyncio.run(broker.publish(batch, SimpleNamespace(confirm=lambda records: None)))
    assert struct.unpack("<QQQQ", counts.read_bytes()) == (0, 0, 4, 1)
