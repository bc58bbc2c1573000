"""What the pages say of consumers is what the code has."""

import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_type_hints

import pytest

from postroom.options import KafkaSourceOptions, RabbitSourceOptions
from postroom.registry import SOURCES
from postroom.settings import ConsumerSettings

DOCS = Path(__file__).parents[2] / "docs"


def table(page, heading):
    _, _, rest = (DOCS / page).read_text().partition(f"## {heading}\n")
    lines = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_settings():
    expected = [
        (f.name, "`RetryPolicy()`" if f.default is MISSING else f"`{f.default!r}`")
        for f in fields(ConsumerSettings)
    ]
    found = table("reference/settings.md", "ConsumerSettings")
    assert [(row[0].strip("`"), row[1]) for row in found] == expected


def test_sources():
    assert [row[0].strip("`") for row in table("reference/urls.md", "Sources")] == sorted(SOURCES)


def test_every_option_of_a_source_is_named():
    page = (DOCS / "how-to/consumers.md").read_text()
    options = get_type_hints(KafkaSourceOptions) | get_type_hints(RabbitSourceOptions)
    assert {
        name for name in options.keys() - {"config"} if not re.search(rf"[`?&]{name}[`=]", page)
    } == set()


@pytest.mark.req("S3.6")
def test_the_guide_to_the_bus_has_four_steps():
    _, _, guide = (DOCS / "how-to/bus.md").read_text().partition("## Adopt it in four steps\n")
    assert re.findall(r"^(\d)\. ", guide.partition("\n## ")[0], re.MULTILINE) == list("1234")


@pytest.mark.req("S3.7")
def test_the_limits_of_the_bus_are_stated():
    _, _, limits = (DOCS / "how-to/bus.md").read_text().partition("## Limits\n")
    assert "no strong consistency in real time" in limits
    assert "Repeats are normal" in limits
