"""Package docs, the tree in CONTRIBUTING and paths on pages name what is really there."""

from __future__ import annotations

import ast
import re
import tomllib
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


SHARED = {
    "read": {"read"},
    "stage": {"stage"},
    "settle": {"settle", "holds"},
    "blocks": {"repair_blocks"},
    "prune": {"prune"},
    "leases": {"heartbeat", "take", "retake", "release", "leave", "leases"},
    "lookup": {
        "get", "look_up", "open_keys", "find", "stats", "streams", "details", "dead_causes",
    },
    "commands": {"replay", "bury", "skip"},
    "waiting": {"retry_now", "cancel", "reschedule"},
    "audit": {"record_audit", "audit_log"},
    "operations": {
        "operations", "operation", "start_operation", "take_operation", "advance_operation",
        "change_operation",
    },
}  # fmt: skip


@pytest.mark.parametrize("store", ["sqlite", "postgres", "mysql", "mongo"])
def test_a_method_of_the_port_is_in_the_same_file_of_each_store(store):
    for name, functions in SHARED.items():
        body = ast.parse((SRC / "stores" / store / f"{name}.py").read_text()).body
        found = {
            node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert functions - found == set(), f"stores/{store}/{name}.py"


# -- the tree in CONTRIBUTING -----------------------------------------------------------------
def tree_of(page: str) -> dict[str, str]:
    """Return the paths of a tree in a block of text, each with its phrase."""
    (block,) = re.findall(r"```text\nsrc/postroom/\n(.*?)```", page, re.DOTALL)
    found: dict[str, str] = {"src/postroom/": "the package"}
    above = ["src/postroom/"]
    for line in filter(None, block.splitlines()):
        name, _, phrase = line.strip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // 2
        above[depth:] = [(above[depth - 1] if depth else "") + name]
        found[above[-1]] = phrase.strip()
    return found


def folders(place: str, depth: int) -> set[str]:
    """Return the folders with code or pages below a place."""
    kinds = {".py", ".md", ".pml", ".yaml", ".yml", ".service", ".json"}
    files = [f for f in (ROOT / place).rglob("*") if f.suffix in kinds and f.is_file()]
    parts = [file.relative_to(ROOT / place).parts[:-1][:depth] for file in files]
    return {place + "/".join(p[: n + 1]) + "/" for p in parts for n in range(len(p))}


def test_the_tree_shows_all_modules_and_packages():
    there = {f"src/postroom/{f.name}" for f in SRC.iterdir() if f.suffix in {".py", ".typed"}}
    there |= {f"src/postroom/{package}/" for package in DOCUMENTED}
    there |= {"src/postroom/", "tests/", "bench/", "spec/", "docs/", "examples/", "deploy/"}
    for place in ("tests/", "bench/", "docs/"):
        there |= folders(place, 1)
    there -= {"docs/explanation/performance/"}
    tree = tree_of((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert set(tree) == there
    assert [path for path, phrase in tree.items() if not phrase] == ["tests/", "docs/"]


def test_the_layers_of_the_architecture_are_those_of_the_import_linter():
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"flowchart TB\n(  edges.*?)```", page, re.DOTALL)
    shown = [set(label.split(" · ")) for label in re.findall(r'\["(.*?)"\]', block)]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = settings["tool"]["importlinter"]["contracts"][0]
    layers = [set(re.findall(r"postroom\.(\w+)", layer)) for layer in contract["layers"]]
    assert shown == layers


# -- paths on pages ---------------------------------------------------------------------------
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    if path.name != "CHANGELOG.md"  # it may speak of what was
)
FOLDERS = ("tests", "docs", "bench", "spec", "examples", "deploy", "src")
WORDS = re.compile(r"(?<!`)`([^`\s]+)`(?!`)")
FILE = re.compile(r"[\w./-]+/[\w.-]*|\w+\.(?:py|sql|pml)")
KINDS = ("*.py", "*.sql", "*.pml")
ALL = {
    path.name
    for kind in KINDS
    for folder in ("src", "tests", "bench", "spec", "examples")
    for path in (ROOT / folder).rglob(kind)
} | {path.name for path in ROOT.glob("*.py")}


def is_module(name: str) -> bool:
    """Say whether `postroom.a.b.Name` is there; names outside of our packages are not asked."""
    parts = name.split(".")[1:]
    place = SRC
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    if parts and (place / f"{parts[0]}.py").is_file():
        place /= f"{parts.pop(0)}.py"
    text = (place if place.is_file() else place / "__init__.py").read_text()
    return not parts or re.search(rf"\b{parts[0]}\b", text) is not None


def is_there(word: str) -> bool:
    """Say whether a path is there: from the root, in the package, or among the tests."""
    if "/" not in word:
        return word in ALL
    return any((place / word).exists() for place in (ROOT, SRC, ROOT / "tests"))


def wrong_on(page: Path) -> set[str]:
    wrong = set()
    explains = "explanation" in page.parts or page.name == "CONTRIBUTING.md"
    for word in WORDS.findall(page.read_text(encoding="utf-8")):
        if word.startswith("postroom.") and re.fullmatch(r"[\w.]+", word):
            first = word.split(".")[1]
            if first in children(SRC) and not is_module(word):
                wrong.add(word)
        elif FILE.fullmatch(word):
            first = word.split("/")[0]
            ours = first in FOLDERS or first in children(SRC)
            if (ours if "/" in word else explains) and not is_there(word):
                wrong.add(word)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_and_modules_on_a_page_are_there(page):
    assert wrong_on(page) == set()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`src/postroom/outbox.py`, `engine/relay/`, `unit/test_tree.py`, `codec.py`", set()),
        (
            "`src/postroom/office.py` `engine/tender.py`",
            {"src/postroom/office.py", "engine/tender.py"},
        ),
        ("`office.py` `stores/…/events.py`", {"office.py"}),
        ("`postroom.testing.broker.BrokerContract` `postroom.toml` `postroom.skipped`", set()),
        ("`postroom.model.nothing`", {"postroom.model.nothing"}),
    ],
)
def test_what_is_wrong_on_a_page(tmp_path, text, wrong):
    page = tmp_path / "explanation" / "page.md"
    page.parent.mkdir()
    page.write_text(text, encoding="utf-8")
    assert wrong_on(page) == wrong
