"""The pages and the examples import public names only, and the list of public modules is true."""

import ast
import importlib
import re

import pytest

from tests.unit.test_docs import PAGES, ROOT, name_of, rows_of

PAGE = ROOT / "docs/reference/modules.md"
MODULES = {row[0].strip("`"): row[1] for row in rows_of(PAGE, "Modules")}
_BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def names_of(module):
    """Return what a module offers."""
    found = importlib.import_module(module)
    everything = getattr(found, "__all__", None) or vars(found)
    return {name for name in everything if not name.startswith("_")}


def imports(program):
    """Yield (module, name) for everything that a program imports from postroom."""
    for node in ast.walk(compile(program, "program", "exec", ast.PyCF_ONLY_AST)):
        if isinstance(node, ast.Import):
            yield from ((each.name, None) for each in node.names if is_ours(each.name))
        elif isinstance(node, ast.ImportFrom) and node.module and is_ours(node.module):
            yield from ((node.module, each.name) for each in node.names)


def is_ours(module):
    return module.partition(".")[0] == "postroom"


def is_public(module, name):
    if name is None:
        return module in MODULES
    if f"{module}.{name}" in MODULES:
        return True
    return module in MODULES and name in names_of(module)


PROGRAMS = {name_of(page): _BLOCK.findall(page.read_text()) for page in PAGES} | {
    name_of(path): [path.read_text()] for path in sorted(ROOT.glob("examples/**/*.py"))
}


@pytest.mark.parametrize("place", [place for place, programs in PROGRAMS.items() if programs])
def test_only_public_names_are_imported(place):
    wanted = [each for program in PROGRAMS[place] for each in imports(program)]
    assert [each for each in wanted if not is_public(*each)] == []


@pytest.mark.parametrize("module", MODULES)
def test_a_public_module_has_what_its_row_names(module):
    listed = set(re.findall(r"`(\w+)`", MODULES[module]))
    assert listed <= names_of(module)


def test_what_is_not_public_is_found():
    private = "from postroom.engine.relay.relay import Relay\nfrom postroom import _version\n"
    assert [each for each in imports(private) if is_public(*each)] == []
    public = "import postroom\nfrom postroom import Relay\nfrom postroom.telemetry import tracing"
    assert all(is_public(*each) for each in imports(public))
