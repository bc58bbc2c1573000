"""The API reference is made of docstrings, and is up to date.

    python -m tests.unit.test_api_reference --write

writes docs/reference/api/.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import ForwardRef

import pytest

import postroom

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/reference/api"
HINT = "run: python -m tests.unit.test_api_reference --write"

# page → title, introduction, and the names on it: `module` and its public names
PAGES = {
    "outbox": (
        "Outbox and events",
        "For services that send.",
        {"postroom": ["Event", "Outbox", "SyncOutbox", "Routes"]},
    ),
    "inbox": (
        "Inbox",
        "For services that receive with their own loop; a `Consumer` calls it for you.",
        {"postroom": ["Inbox", "SyncInbox", "is_conflict", "read_headers"]},
    ),
    "relay": (
        "Relay",
        "The engine that publishes the events of a stream, with its settings.",
        {
            "postroom": [
                "Relay", "RelaySettings", "RetryPolicy", "Exponential", "Linear", "Constant",
            ],
        },
    ),
    "handlers": (
        "Handlers",
        "Functions for events, in transactions.",
        {"postroom": ["Handlers", "Context", "SyncContext", "Record", "State", "Retry", "Reject"]},
    ),
    "consumer": (
        "Consumer",
        "The engine that receives messages and runs handlers.",
        {
            "postroom": ["Consumer", "ConsumerSettings"],
            "postroom.sources.kafka": ["KafkaSource"],
            "postroom.sources.rabbitmq": ["RabbitSource"],
            "postroom.sources.memory": ["MemorySource", "MemoryQueue", "QueueBroker"],
        },
    ),
    "bus": ("Bus", "Modules of one process.", {"postroom": ["Bus", "Module"]}),
    "stores": (
        "Stores",
        "The databases, and the questions and commands of operators to them.",
        {
            "postroom": ["migrate", "open_store", "Store", "Filter", "MemoryStore", "Url"],
            "postroom.stores.sqlite": ["SqliteStore"],
            "postroom.stores.postgres": ["PostgresStore", "PostgresNotifier"],
            "postroom.stores.mysql": ["MysqlStore"],
            "postroom.stores.mongo": [
                "MongoStore", "EmbeddedOutbox", "Reconciler", "HasResult", "upsert",
                "without_transaction",
            ],
        },
    ),
    "brokers": (
        "Brokers",
        "The destinations of a relay, and the port for your own.",
        {
            "postroom": ["Broker", "Source", "MemoryBroker"],
            "postroom.broker": ["BrokerCapabilities", "Outcome", "Reporter", "Verdict"],
            "postroom.brokers.memory": ["NullBroker"],
            "postroom.brokers.kafka": ["KafkaBroker"],
            "postroom.brokers.rabbitmq": ["RabbitBroker"],
            "postroom.source": ["Delivery", "SourceConnection"],
        },
    ),
    "observers": (
        "Observers",
        "Facts that relays and consumers report, and what listens to them.",
        {
            "postroom.observer": "all",
            "postroom.notifier": ["Notifier"],
            "postroom.telemetry.log": ["LogObserver", "JsonFormatter"],
            "postroom.telemetry.metrics": ["RelayMetrics"],
            "postroom.telemetry.consumer_metrics": ["ConsumerMetrics"],
            "postroom.telemetry.tracing": ["install", "traced", "TracingObserver"],
        },
    ),
    "integrations": (
        "Integrations",
        "FastAPI and Starlette, FastStream, Alembic.",
        {
            "postroom.integrations.asgi": ["lifespan", "problems", "stop_process"],
            "postroom.integrations.faststream": ["inbox_middleware"],
            "postroom.integrations.alembic": ["Migrations"],
        },
    ),
}  # fmt: skip


def public_classes(module):
    """Return the classes that a module defines, in the order of its text."""
    found = [
        (inspect.getsourcelines(thing)[1], name)
        for name, thing in vars(module).items()
        if inspect.isclass(thing) and thing.__module__ == module.__name__ and name[0] != "_"
    ]
    return [name for _, name in sorted(found)]


def names_of(page):
    """Return (module, name) for everything on a page."""
    found = []
    for path, names in PAGES[page][2].items():
        module = import_module(path)
        chosen = public_classes(module) if names == "all" else names
        found += [(path, name) for name in chosen]
    return found


# -- text -----------------------------------------------------------------------------------------
def prose(doc):
    """Return a docstring as Markdown: a list of `name   text` lines becomes a list."""
    blocks, lines = [], (doc or "").strip().splitlines()
    entry = re.compile(r"^(\S(?:.*?\S)?) {2,}(\S.*)$")
    listed = False
    for line in lines:
        match = entry.match(line)
        if match and not line.startswith(" "):
            names = ", ".join(f"`{name.strip('`')}`" for name in match[1].split(", "))
            blocks.append(f"{'' if listed else chr(10)}- {names}: {match[2]}".lstrip("\n"))
            if not listed and len(blocks) > 1 and blocks[-2]:
                blocks.insert(-1, "")
            listed = True
        elif listed and line.startswith("   "):
            blocks[-1] += " " + line.strip()
        else:
            listed = False
            blocks.append(line)
    return "\n".join(escape(block) for block in blocks).strip()


def escape(line):
    """Keep Markdown from reading something into a line of a docstring."""
    return re.sub(r"(?<!`)([<>])(?!`)", r"\\\1", line) if "`" not in line else line


def signature(thing, name):
    """Return a call as it is written, one parameter a line if it is long."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return f"{name}(…)"
    parts, star = [], False
    for parameter in found.parameters.values():
        if parameter.name in {"self", "cls"}:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        star = star or parameter.kind is parameter.VAR_POSITIONAL
        parts.append(_parameter(parameter))
    back = found.return_annotation
    result = (
        ""
        if back in (found.empty, None, "None") or inspect.isclass(thing)
        else f" -> {_type(back)}"
    )
    line = f"{name}({', '.join(parts)}){result}"
    if len(line) <= 96:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def _parameter(parameter):
    mark = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = mark + parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {_type(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        equals = " = " if parameter.annotation is not parameter.empty else "="
        text += equals + _value(parameter.default)
    return text


def _type(annotation):
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", None)
    text = text or str(annotation)
    return re.sub(r"\b(?:postroom|collections|typing)(?:\.\w+)*\.(\w+)", r"\1", text)


def _value(default):
    shown = repr(default)
    return "…" if " at 0x" in shown or shown.startswith("<") else shown


def members(thing):
    """Return the public methods and properties of a class and of the parents that are ours."""
    found = {}
    for parent in thing.__mro__:
        if not parent.__module__.startswith("postroom"):
            continue
        for name, value in vars(parent).items():
            if name.startswith("_") or name in found:
                continue
            plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if inspect.isfunction(plain) or isinstance(value, property):
                found[name] = value
    return found


def in_port(thing, member):
    """Say whether a port explains a member of a store, broker or source already."""
    ports = [postroom.Store, postroom.Broker, postroom.Source]
    if thing in ports or not re.search(r"\.(stores|brokers|sources)\.", thing.__module__):
        return False
    return any(member in vars(parent) for port in ports for parent in port.__mro__)


def describe_member(name, value):
    plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    if isinstance(value, property):
        doc = inspect.getdoc(value.fget) or ""
        back = inspect.signature(value.fget).return_annotation
        kind = "" if back is inspect.Signature.empty else f": {_type(back)}"
        head = f"{name}{kind}"
    else:
        doc = inspect.getdoc(plain) or ""
        head = signature(plain, name)
        if inspect.iscoroutinefunction(plain):
            head = f"await {head}"
    summary = prose(doc)
    return f"```text\n{head}\n```\n\n{summary}\n" if summary else f"```text\n{head}\n```\n"


def page_of(name):
    """Return the page of a name of the package."""
    return next(page for page, (_, _, names) in PAGES.items() if name in names.get("postroom", ()))


def describe(page, path, name):
    """Return the section of one class or function."""
    thing = getattr(import_module(path), name)
    heading = f"## {name}\n\n"
    where = f"`from {path} import {name}`\n\n"
    text = heading + where
    if inspect.isclass(thing):
        if issubclass(thing, enum.Enum):
            text += f"{prose(inspect.getdoc(thing))}\n\n"
            return text + ", ".join(f"`{name}.{member.name}`" for member in thing) + "\n"
        text += f"```text\n{signature(thing, name)}\n```\n\n"
        text += f"{prose(thing.__doc__ and inspect.cleandoc(thing.__doc__))}\n"
        if any(in_port(thing, member) for member in members(thing)):
            kind = re.search(r"\.(store|broker|source)s\.", thing.__module__)[1].title()
            link = (
                f"[{kind}]({'' if page_of(kind) == page else page_of(kind) + '.md'}#{kind.lower()})"
            )
            text += f"\nIt has the methods of the port {link}.\n"
        fields = (
            [f.name for f in dataclasses.fields(thing)] if dataclasses.is_dataclass(thing) else ()
        )
        for member, value in members(thing).items():
            if member not in fields and not in_port(thing, member):
                text += f"\n### {name}.{member}\n\n{describe_member(member, value)}"
        return text
    await_ = "await " if inspect.iscoroutinefunction(thing) else ""
    return (
        text + f"```text\n{await_}{signature(thing, name)}\n```\n\n{prose(inspect.getdoc(thing))}\n"
    )


def written(page):
    """Return the text of a page."""
    title, introduction, _ = PAGES[page]
    sections = [describe(page, path, name) for path, name in names_of(page)]
    listed = ", ".join(f"[{name}](#{name.lower()})" for _, name in names_of(page))
    note = "Written from the docstrings by `tests/unit/test_api_reference.py`."
    return f"# API: {title.lower()}\n\n{introduction} {note}\n\n{listed}\n\n" + "\n".join(sections)


# -- tests ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_what_the_docstrings_say(page):
    assert (FOLDER / f"{page}.md").read_text(encoding="utf-8") == written(page), HINT


def test_every_public_name_is_on_one_page():
    found = [name for page in PAGES for path, name in names_of(page) if path == "postroom"]
    assert len(found) == len(set(found))
    errors = {name for name in postroom.__all__ if name.endswith("Error")}
    assert set(found) == set(postroom.__all__) - errors - {"__version__"}


def test_no_other_page_is_there():
    assert {path.stem for path in FOLDER.glob("*.md")} == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_everything_on_a_page_has_a_docstring(page):
    for path, name in names_of(page):
        thing = getattr(import_module(path), name)
        assert thing.__doc__, f"{path}.{name}"
        assert not thing.__doc__.startswith(f"{name}("), f"{path}.{name} has a generated one"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    FOLDER.mkdir(exist_ok=True)
    for page in PAGES:
        (FOLDER / f"{page}.md").write_text(written(page), encoding="utf-8")
