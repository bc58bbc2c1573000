"""The README as the package's page shows it: no link that leads nowhere there."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def for_pypi(monkeypatch):
    """Load the build hook, without the build tool."""
    interface = ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = object
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    found = {}
    exec(compile((ROOT / "hatch_build.py").read_text(), "hatch_build.py", "exec"), found)
    return found["for_pypi"]


def links(text):
    return re.findall(r"\]\(([^)\s]+)\)", text)


def test_relative_links_lead_to_this_version_in_the_repository(for_pypi):
    text = for_pypi(README, "https://example.org/postroom/", "0.1.0")
    assert len(links(text)) == len(links(README)) > 15
    assert all(link.startswith(("https://", "#")) for link in links(text))
    assert "https://example.org/postroom/blob/v0.1.0/docs/index.md" in links(text)


def test_without_a_repository_the_words_stay(for_pypi):
    text = for_pypi(README, None, "0.1.0")
    assert [link for link in links(text) if not link.startswith(("https://", "#"))] == []
    assert "your first outbox in 15 minutes" in text


def test_fences_have_the_names_that_pypi_knows(for_pypi):
    text = for_pypi(README, None, "0.1.0")
    assert "```python\nimport asyncio" in text
    assert "python run" not in text
