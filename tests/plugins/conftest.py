from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ENTRY_POINTS = """
[postroom.stores]
shelf = postroom_shelf:ShelfStore

[postroom.brokers]
shelf = postroom_shelf:ShelfBroker

[postroom.sources]
shelf = postroom_shelf:ShelfSource
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Install the plug-in, as pip would: its module, and what it says of itself."""
    site = tmp_path / "site-packages"
    about = site / "postroom_shelf-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: postroom-shelf\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    source = Path(__file__).with_name("postroom_shelf.py").read_text(encoding="utf-8")
    (site / "postroom_shelf.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()
    yield site
    sys.modules.pop("postroom_shelf", None)
