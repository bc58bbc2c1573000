"""Package docs, the tree in CONTRIBUTING and paths on pages name what is really there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src/postroom"
PACKAGES = sorted(p.parent.relative_to(SRC).as_posix() for p in SRC.rglob("__init__.py"))
DOCUMENTED = [name for name in PACKAGES if name != "."]


def children(folder: Path) -> set[str]:
    """Return the modules and packages in a package."""
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}
    return modules | {path.parent.name for path in folder.glob("*/__init__.py")}


def doc_of(package: str) -> str:
    return ast.get_docstring(ast.parse((SRC / package / "__init__.py").read_text())) or ""


def listed_in(doc: str) -> set[str]:
    """Return the names at the beginning of lines such as `name   text` or `one, two    text`."""
    lines = re.findall(r"^([a-z_]+(?:, [a-z_]+)*)  +\S", doc, re.MULTILINE)
    return {name for line in lines for name in line.split(", ")}


@pytest.mark.parametrize("package", DOCUMENTED)
def test_the_doc_of_a_package_names_all_of_its_modules(package):
    doc = doc_of(package)
    missing = {name for name in children(SRC / package) if not re.search(rf"\b{name}\b", doc)}
    assert missing == set()


@pytest.mark.parametrize("package", DOCUMENTED)
def test_the_doc_of_a_package_names_no_module_that_is_not_there(package):
    there = children(SRC / package)
    if package == "stores":  # it explains the names that all stores share
        there |= {name for store in there for name in children(SRC / "stores" / store)}
    assert listed_in(doc_of(package)) - there == set()


def test_the_lists_are_found():
    assert {"heartbeat", "stager", "worker"} <= listed_in(doc_of("engine/relay"))
    assert "django" in listed_in(doc_of("transactions"))
