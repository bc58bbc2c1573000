"""Names on pages are names of the code: commands and their options, metrics, errors, settings, keywords."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import shlex
from dataclasses import fields, is_dataclass
from pathlib import Path
from textwrap import dedent

import click
import pytest

import postroom
from postroom import errors, options
from postroom.cli.app import cli
from postroom.settings import ConsumerSettings, RelaySettings
from tests.unit.test_docs import rows

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src/postroom"
PAGES = sorted([
    *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "examples/README.md",
])  # fmt: skip
PAGES = [page for page in PAGES if page.name != "CHANGELOG.md"]  # it may speak of what was
SOURCES = "\n".join(
    path.read_text(encoding="utf-8")
    for folder in ("src", "tests", "bench", "examples", "deploy", "spec")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".sql", ".toml", ".yml", ".yaml", ".json", ".pml", ".service"}
    and path.name != Path(__file__).name
)
WORDS = set(re.findall(r"\w+", SOURCES))
FENCES = re.compile(r"^([ ]*)```([^\n]*)\n(.*?)^[ ]*```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
SETTINGS = {f.name for kind in (RelaySettings, ConsumerSettings) for f in fields(kind)} | {
    name
    for options_type in vars(options).values()
    if inspect.isclass(options_type) and hasattr(options_type, "__annotations__")
    for name in options_type.__annotations__
}
FOREIGN_ERRORS = {  # of drivers and of the programs on pages
    "OperationalError", "IntegrityError", "AMQPConnectionError", "OutOfStockError", "InvalidSchemaName",
}  # fmt: skip


FOREIGN = {  # names of other programs, and names that the code makes of parts
    "attempt_delivery", "ce_tracestate", "dedupe_key", "delay_on_commit", "do_run_migrations",
    "postroom_events_refused", "produce_batch", "retry_timer",
}  # fmt: skip
FILES = {path.stem for path in (ROOT / "tests").rglob("*.py")}
METRICS = {row[0].strip("`") for row in rows("metrics.md", "Metrics")}


def named(page):
    return page.relative_to(ROOT).as_posix()


def fenced(page, *kinds):
    return [
        dedent(body)
        for _, kind, body in FENCES.findall(page.read_text(encoding="utf-8"))
        if kind in kinds
    ]


def inline(page):
    """Return the code in the text of a page, each in one line."""
    text = FENCES.sub("", page.read_text(encoding="utf-8"))
    return [re.sub(r"\s+", " ", code) for code in INLINE.findall(text)]


# -- commands -------------------------------------------------------------------------------------
def command_lines(page):
    """Return the calls of `postroom` in consoles and in the text."""
    lines = [line for body in fenced(page, "console", "sh") for line in joined(body)]
    for code in [*lines, *inline(page)]:
        for part in re.split(r"&&|\||;", code.removeprefix("$ ").partition("  #")[0]):
            match = re.match(r"(?:[\w./]*/)?postroom (?=[a-z-])(.*)", part.strip())
            if match:
                yield match[1]


def joined(body):
    return re.sub(r"\\\n\s*", "", body).splitlines()


def problems_of(line):
    """Return what is wrong with a call: the command, or options that it does not have."""
    try:
        words = shlex.split(line.replace("…", " … "))
    except ValueError:
        words = line.split()
    known = {option for parameter in cli.params for option in parameter.opts}
    if words and words[0].startswith("--"):
        return [] if words[0] in known else words[:1]
    name = words[0] if words else ""
    if name not in cli.commands:
        return [name]
    command = cli.commands[name]
    assert isinstance(command, click.Command)
    known = {option for parameter in command.params for option in parameter.opts}
    known |= {option for parameter in command.params for option in parameter.secondary_opts}
    given = [
        word.partition("=")[0] for word in words[1:] if word.startswith("--") and len(word) > 2
    ]
    return [option for option in given if option not in known | {"--help"}]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_and_their_options_exist(page):
    wrong = {line: found for line in command_lines(page) if (found := problems_of(line))}
    assert wrong == {}


def test_wrong_commands_are_found():
    assert problems_of("list --state dead") == []
    assert problems_of("lst") == ["lst"]
    assert problems_of("list --stat dead") == ["--stat"]
    assert problems_of("migrate sql --from 0 > file.sql") == []


# -- metrics, tables, errors ----------------------------------------------------------------------
@pytest.mark.parametrize("page", PAGES, ids=named)
def test_names_of_metrics_and_tables_exist(page):
    text = page.read_text(encoding="utf-8")
    found = set(re.findall(r"(?<![\w/.])postroom_[a-z][a-z0-9_]*[a-z0-9]\b", text))
    endings = ("_bucket", "_count", "_sum")  # Prometheus adds them to a histogram
    known = METRICS | {f"{metric}{end}" for metric in METRICS for end in endings}
    assert found - known - WORDS - FOREIGN == set()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_names_of_errors_exist(page):
    found = {name for code in inline(page) for name in re.findall(r"\b[A-Z]\w+Error\b", code)}
    ours = set(vars(errors)) | set(vars(builtins)) | FOREIGN_ERRORS
    assert found - ours == set()


# -- settings -------------------------------------------------------------------------------------
def setting_names(code):
    """Return words that look like settings: `poll_seconds`, `keep_done_seconds = 0`, `--max-attempts`."""
    return set(re.findall(r"(?<![\w.%-])[a-z]+(?:_[a-z]+)+(?=\b(?!\())", code))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_names_with_underscores_exist_in_the_code(page):
    found = {name for code in inline(page) for name in setting_names(code)}
    own = set(re.findall(r"\w+", "\n".join(fenced(page, "python", "python run", "console"))))
    assert found - WORDS - METRICS - FILES - FOREIGN - own == set()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_durations_and_limits_are_settings(page):
    """A word such as `poll_max_seconds` is a setting, an option of a store or broker, or a column."""
    shape = re.compile(
        r"(?:poll|keep|max|lease|prune|stop|outage|publish|dedup|linger|connect)_\w+"
    )
    found = {
        name
        for code in inline(page)
        for name in setting_names(code)
        if shape.fullmatch(name)
        and name.endswith(("_seconds", "_size", "_bytes", "_done", "_dead"))
    }
    known = SETTINGS | set(re.findall(r"^    \"?(\w+)\"?: ", SOURCES, re.MULTILINE))
    assert found - known == set()


def test_names_of_the_past_are_found():
    assert setting_names("poll_max_seconds = 3, keep_done(…)") == {"poll_max_seconds"}
    assert "poll_seconds" in SETTINGS
    assert not {"poll_max_seconds", "poll_min_seconds", "keep_done"} & SETTINGS


# -- keywords of calls ----------------------------------------------------------------------------
def accepted(name):
    """Return the keywords of one of our classes, or None if it takes any."""
    thing = getattr(postroom, name)
    if issubclass(thing if inspect.isclass(thing) else type(thing), BaseException):
        return None
    found = set()
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            kind = {"Relay": RelaySettings, "Consumer": ConsumerSettings, "Bus": RelaySettings}.get(
                name
            )
            if kind is None or not is_dataclass(kind):
                return None
            found |= {f.name for f in fields(kind)}
        else:
            found.add(parameter.name)
    return found


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_keywords_of_calls_exist(page):
    wrong = []
    for body in fenced(page, "python", "python run"):
        for node in ast.walk(
            compile(body, named(page), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        ):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id not in postroom.__all__ or not callable(
                getattr(postroom, node.func.id)
            ):
                continue
            known = accepted(node.func.id)
            given = {keyword.arg for keyword in node.keywords if keyword.arg}
            if known is not None and given - known:
                wrong.append((node.func.id, sorted(given - known)))
    assert wrong == []
