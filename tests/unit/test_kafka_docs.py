"""The pages about Kafka say what the code does."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from postroom.brokers.kafka.settings import KafkaSettings
from postroom.model import envelope

DOCS = Path(__file__).parents[2] / "docs"


def table(page, heading):
    """The cells of the first table under a heading."""
    _, _, text = (DOCS / page).read_text().partition(f"## {heading}\n")
    lines = [line for line in text.partition("\n## ")[0].splitlines()]
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    found = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def test_every_option_and_its_default():
    listed = {
        row[0].strip("`"): row[1].strip("`") for row in table("how-to/kafka.md", "All options")
    }
    parameters = inspect.signature(KafkaSettings).parameters
    expected = {n: repr(p.default) for n, p in parameters.items() if n not in ("servers", "config")}
    assert listed == expected


def test_every_header():
    names = [
        value for name, value in vars(envelope).items() if name.isupper() and isinstance(value, str)
    ]
    listed = [row[0].strip("`") for row in table("reference/message-format.md", "Headers")]
    assert sorted(listed[:-1]) == sorted(names)


def test_what_idempotence_does_not_do_is_said():
    page = re.sub(r"\s+", " ", (DOCS / "how-to/kafka.md").read_text())
    assert "Producer idempotence does not remove re-sends." in page
    assert "`min.insync.replicas` | 2" in page
    assert "More partitions move keys." in page
