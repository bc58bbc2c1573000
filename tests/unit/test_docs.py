"""The pages are true: their programs run, their tables match the code, their links lead somewhere.

On one page, the blocks marked `python run` are one program, run in an empty folder; the blocks
marked `text output` are, together, what it prints.
"""

import ast
import inspect
import os
import re
import sqlite3
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

import postroom
from postroom import errors, event
from postroom.cli.app import cli
from postroom.cli.exit_codes import MEANINGS
from postroom.engine.handlers.handlers import Handlers
from postroom.outbox import Outbox
from postroom.record import LANES, Stage, State
from postroom.registry import BROKERS, STORES
from postroom.retry import Constant, Exponential, Linear, RetryPolicy
from postroom.settings import RelaySettings
from postroom.stores.sqlite.settings import SqliteSettings
from postroom.stores.sqlite.statements import load_migrations

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "examples/README.md"])
PATIENCE_SECONDS = 60

_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def blocks(page, info):
    return [body for said, body in _BLOCK.findall(page.read_text()) if said == info]


def python(arguments, folder):
    """Run Python as a reader would, from another folder, with warnings as errors."""
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments], cwd=folder, check=False,
        capture_output=True, text=True, timeout=PATIENCE_SECONDS,
        env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip


_LOGGED = re.compile(
    r"^(?:attempt|dead-letter|alarm) stream=.*\n(?:Traceback .*\n(?: .*\n)*\S.*\n)?", re.MULTILINE
)


def complaints(stderr):
    """Return stderr without log lines: some programs fail on purpose, to show what happens."""
    return _LOGGED.sub("", stderr)


# -- programs ---------------------------------------------------------------------------------
PROGRAMS = [page for page in PAGES if blocks(page, "python run")]


@pytest.mark.parametrize("page", PROGRAMS, ids=name_of)
def test_the_program_of_a_page_runs_and_prints_what_the_page_says(page, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("\n\n".join(blocks(page, "python run")))
    done = python([program.name], tmp_path)
    assert complaints(done.stderr) == ""
    assert done.returncode == 0
    assert done.stdout == "".join(blocks(page, "text output"))


def test_the_pages_that_promise_a_program_have_one():
    assert {name_of(page) for page in PROGRAMS} >= {
        "README.md",
        "docs/tutorial/first-outbox.md",
        "docs/how-to/dead-letters.md",
        "docs/how-to/delayed-events.md",
        "docs/how-to/handlers.md",
        "docs/how-to/sqlalchemy.md",
        "docs/how-to/sqlite.md",
        "docs/how-to/strict-order.md",
        "docs/how-to/write-your-own-broker.md",
    }


HOW_TO = [
    page for page in [*ROOT.glob("docs/how-to/*.md"), *ROOT.glob("docs/tutorial/*.md")]
    if re.search(r"^```python run", page.read_text(), re.MULTILINE)
]  # fmt: skip


@pytest.mark.parametrize("page", sorted(HOW_TO), ids=name_of)
def test_a_page_with_a_program_says_how_to_install_it(page):
    assert "pip install" in page.read_text().partition("```python run")[0]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_python_block_is_python(page):
    for body in blocks(page, "python"):
        compile(body, name_of(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_readme_shows_about_thirty_lines():
    (program,) = blocks(ROOT / "README.md", "python run")
    assert len(program.splitlines()) <= 36


@pytest.mark.req("S4.10")
def test_the_example_of_one_file_runs(tmp_path):
    done = python([str(ROOT / "examples/single_file.py")], tmp_path)
    assert complaints(done.stderr) == ""
    assert done.returncode == 0
    assert "3 orders were committed, 1 was rolled back" in done.stdout
    assert "3 orders are charged, each once" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.req("S3.6")
def test_the_guide_to_adoption_has_four_steps_and_tables_of_a_modules_own():
    page = ROOT / "docs/how-to/sqlite.md"
    _, _, guide = page.read_text().partition("## Adopt it in four steps\n")
    steps = re.findall(r"^(\d)\. ", guide.partition("\n## ")[0], re.MULTILINE)
    assert steps == ["1", "2", "3", "4"]
    program = "".join(blocks(page, "python run"))
    assert 'prefix="billing_"' in program


@pytest.mark.req("S3.7")
def test_the_limits_are_stated():
    _, _, limits = (ROOT / "docs/explanation/promises.md").read_text().partition("## Limits\n")
    assert "no agreement in real time" in limits
    assert "Repeats are normal" in limits
    assert "Handlers must be idempotent" in limits


# -- links ------------------------------------------------------------------------------------
def anchors(page):
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", _BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_nowhere(page, target):
    path, _, anchor = target.partition("#")
    there = (page.parent / path).resolve() if path else page
    return not there.exists() or (anchor and anchor not in anchors(there))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    targets = _LINK.findall(_BLOCK.sub("", page.read_text()))
    ours = [target for target in targets if not target.startswith(("http://", "https://"))]
    assert [target for target in ours if leads_nowhere(page, target)] == []


def test_every_page_is_reached_from_the_index():
    index = ROOT / "docs/index.md"
    linked = {
        (index.parent / t.partition("#")[0]).resolve() for t in _LINK.findall(index.read_text())
    }
    assert {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - {index} <= linked


# -- tables against the code ------------------------------------------------------------------
def rows_of(page, heading):
    """Return the cells of the first table under a heading, without its two head lines."""
    section = re.search(
        rf"^##+ {re.escape(heading)}\n(.*?)(?=^## |\Z)", page.read_text(), re.M | re.S
    )
    assert section, f"{page} has no heading {heading!r}"
    lines = [line for line in section[1].splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert all(all(cells) for cells in table[2:]), f"{page}, {heading}: an empty cell"
    return table[2:]


def rows(page, heading):
    return rows_of(ROOT / "docs/reference" / page, heading)


def first_names(page, heading):
    return [row[0].strip("`") for row in rows(page, heading)]


def test_tables():
    conn = sqlite3.connect(":memory:")
    for migration in load_migrations("postroom_"):
        for statement in migration.statements:
            conn.execute(statement)
    tables = [n for (n,) in conn.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'postroom%' ORDER BY rowid"
    )]  # fmt: skip
    assert tables
    for table in tables:
        columns = [row[1] for row in conn.execute(f"PRAGMA table_info({table})")]
        assert first_names("tables.md", table) == columns
    indexes = [n for (n,) in conn.execute(
        "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY rowid"
    )]  # fmt: skip
    assert first_names("tables.md", "Indexes") == indexes
    conn.close()


def test_states_and_stages():
    assert first_names("states.md", "State") == [str(state) for state in State]
    assert first_names("states.md", "Stage") == [str(stage) for stage in Stage]


def test_event_fields():
    wanted = {field.name for field in fields(event.Event)}
    assert set(first_names("events.md", "Fields")) == wanted
    limits = dict(row[:2] for row in rows("events.md", "Limits"))
    assert limits["`id`"] == f"{event.MAX_ID_BYTES} bytes"
    assert limits["`topic`"] == f"{event.MAX_TOPIC_BYTES} bytes"
    assert limits["`stream`"] == f"{event.MAX_STREAM_BYTES} bytes"
    assert limits["headers"] == f"{event.MAX_HEADERS_BYTES:,} bytes in all"
    assert limits["`causation_path`"] == f"{event.MAX_CAUSATION} steps"
    assert limits["payload"] == "900,000 bytes"
    assert limits["depth"] == "64 levels"


def shown(default):
    return "required" if default is inspect.Parameter.empty else f"`{default!r}`"


def test_relay_settings():
    expected = [
        (f.name, "`RetryPolicy()`" if f.default is MISSING else f"`{f.default!r}`")
        for f in fields(RelaySettings)
    ]
    assert [(r[0].strip("`"), r[1]) for r in rows("settings.md", "RelaySettings")] == expected


@pytest.mark.parametrize(
    "thing", [RetryPolicy, Exponential, Linear, Constant, Outbox, Handlers, SqliteSettings],
    ids=lambda thing: thing.__name__,
)  # fmt: skip
def test_parameters_have_their_defaults(thing):
    expected = {
        name: shown(parameter.default)
        for name, parameter in inspect.signature(thing).parameters.items()
        if name != "random"
    }
    if thing is RetryPolicy:
        expected["backoff"] = "`Exponential()`"
    heading = "SqliteStore" if thing is SqliteSettings else thing.__name__
    assert {r[0].strip("`"): r[1] for r in rows("settings.md", heading)} == expected


def test_errors():
    classes = [
        name for name, thing in vars(errors).items()
        if isinstance(thing, type) and issubclass(thing, Exception)
    ]  # fmt: skip
    listed = first_names("errors.md", "Errors") + first_names("errors.md", "Signals of a handler")
    assert sorted(listed) == sorted(classes)


def test_public_names_are_exported():
    assert {"Event", "Outbox", "Relay", "Handlers", "Inbox", "migrate"} <= set(postroom.__all__)


def test_cli():
    assert first_names("cli.md", "Commands") == sorted(cli.commands)
    for name, command in cli.commands.items():
        options = [o for p in command.params for o in p.opts if o.startswith("--")]
        assert first_names("cli.md", f"postroom {name}") == options
    codes = {int(row[0]): row[1] for row in rows("cli.md", "Exit codes")}
    assert codes == {int(code): meaning for code, meaning in MEANINGS.items()}


def test_url_schemes():
    assert first_names("urls.md", "Stores") == sorted(STORES)
    assert first_names("urls.md", "Destinations") == sorted(BROKERS)


def test_the_number_of_lanes_is_said_right():
    assert f"{LANES} lanes" in (ROOT / "docs/explanation/lanes.md").read_text()
