"""Each rule that code, tests and pages refer to is on the page of the protocol, and is used."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/protocol.md"
PROMISES = ROOT / "docs/explanation/promises.md"
RULE = re.compile(r"(?<![\w.-])[WLRBPHIKQDGF]\d{1,2}(?![\w.]?\w)")


def defined() -> set[str]:
    rules = re.findall(r"^- \*\*(\w+)\*\* ", PAGE.read_text(), re.MULTILINE)
    assert len(rules) == len(set(rules))
    return {*rules, *re.findall(r"^\| \[?([GF]\d)\b", PROMISES.read_text(), re.MULTILINE)}


def words_of(path: Path) -> str:
    """Return what a file says to people: comments, docstrings and marks of a module, or all of it."""
    text = path.read_text(encoding="utf-8")
    if RULE.search(text) is None:
        return ""  # most files; a tokenizer takes its time
    if path.suffix == ".sql":
        return "\n".join(re.findall(r"--.*", text))
    if path.suffix != ".py":
        return re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
    said = [
        t.string
        for t in tokenize.generate_tokens(io.StringIO(text).readline)
        if t.type == tokenize.COMMENT
    ]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            said.append(ast.get_docstring(node) or "")
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "promise"
        ):
            said += [a.value for a in node.args if isinstance(a, ast.Constant)]
    return "\n".join(said)


def files() -> list[Path]:
    kinds = {
        "src": (".py", ".sql"),
        "tests": (".py",),
        "docs": (".md",),
        "bench": (".py",),
        "spec": (".py",),
    }
    return [
        path
        for folder, suffixes in kinds.items()
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in suffixes
    ]


@cache
def cited() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in files():
        if path not in (PAGE, Path(__file__)):
            for rule in RULE.findall(words_of(path)):
                found.setdefault(rule, []).append(path.relative_to(ROOT).as_posix())
    return found


def test_every_rule_that_is_referred_to_is_on_the_page():
    missing = {rule: places for rule, places in cited().items() if rule not in defined()}
    assert missing == {}


def test_every_rule_is_referred_to_by_code_or_a_test():
    unused = defined() - {
        rule for rule, places in cited().items() if any(not p.startswith("docs/") for p in places)
    }
    assert unused <= {"W4", "D2", "D6", "D7"}  # said to users, or a matter of measurement


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("the fence (L2, L3).", ["L2", "L3"]),
        ("rules H2 to H4", ["H2", "H4"]),
        ("R-D7, X-H5, S5.5, K8s", []),
        ("see B1.", ["B1"]),
    ],
)
def test_what_counts_as_a_reference(text, found):
    assert RULE.findall(text) == found
