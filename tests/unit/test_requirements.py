"""Requirements and promises: what the pages say is what the tests' marks say.

    python -m tests.unit.test_requirements --write

puts the files that carry a mark into the last column of both pages. The words are written by hand.
"""

import ast
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "docs/explanation/requirements.md"
PROMISES = ROOT / "docs/explanation/promise-tests.md"
EXPLAINED = ROOT / "docs/explanation/promises.md"
MARKED = ("tests", "src/postroom/testing")

# How many requirements each document has, and how many rules each letter of the protocol.
DOCUMENTS = {"S1": 10, "S2": 8, "S3": 7, "S4": 10, "S5": 7}
RULES = {
    "G": 7, "W": 10, "L": 8, "R": 6, "B": 6, "P": 4, "H": 5, "I": 6, "K": 7, "Q": 4, "D": 7,
    "F": 4,
}  # fmt: skip
IDS = [f"{document}.{n}" for document, last in DOCUMENTS.items() for n in range(1, last + 1)]
PROMISE_IDS = [f"{letter}{n}" for letter in "GF" for n in range(1, RULES[letter] + 1)]
RULE_IDS = {f"{letter}{n}" for letter, last in RULES.items() for n in range(1, last + 1)}

_ROW = re.compile(r"^\| ((?:S\d\.|G|F)\d+) \|.*\|$", re.MULTILINE)


def marks(name):
    """Return id → the files whose tests carry it, from `pytest.mark.<name>(…)` anywhere in them."""
    found = defaultdict(set)
    for shown, mark, identity in _all_marks():
        if mark == name:
            found[identity].add(shown)
    return {identity: sorted(files) for identity, files in found.items()}


@cache
def _all_marks():
    """Return (file, mark, id) for each; to read all files takes seconds."""
    return [
        (shown.removeprefix("tests/"), node.func.attr, ast.literal_eval(argument))
        for folder in MARKED
        for path in sorted((ROOT / folder).rglob("*.py"))
        for shown in [path.relative_to(ROOT).as_posix().removeprefix("src/postroom/")]
        for node in ast.walk(ast.parse(path.read_text()))
        if _is_mark(node)
        for argument in node.args
    ]


def _is_mark(node):
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("req", "promise")
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr == "mark"
    )


def entries(page):
    """Return id → the cells of its row."""
    found = {}
    for match in _ROW.finditer(page.read_text()):
        assert match[1] not in found, f"{page.name} has two rows for {match[1]}"
        found[match[1]] = [cell.strip() for cell in match[0].split("|")[1:-1]]
    return found


def cell_of(files):
    return ", ".join(f"`{file}`" for file in files) or "none yet"


def write(page, found):
    """Put the test files of each row into its last column."""

    def row(match):
        cells = match[0].split("|")
        cells[-2] = f" {cell_of(found.get(match[1], []))} "
        return "|".join(cells)

    page.write_text(_ROW.sub(row, page.read_text()))


HINT = "run: python -m tests.unit.test_requirements --write"


def test_the_page_has_every_requirement_once_and_in_order():
    assert len(IDS) == 42
    assert list(entries(REQUIREMENTS)) == IDS


def test_every_requirement_has_words_and_a_state():
    for identity, (_, words, state, _) in entries(REQUIREMENTS).items():
        assert len(words) > 20, identity
        assert re.match(r"(done|part|to come)\b", state), f"{identity}: {state!r}"


def test_tests_cite_only_ids_that_exist():
    assert set(marks("req")) - set(IDS) == set()
    assert set(marks("promise")) - RULE_IDS == set()


def test_what_is_done_or_in_part_is_proved_by_a_test_and_what_is_to_come_is_not():
    found = marks("req")
    for identity, (_, _, state, _) in entries(REQUIREMENTS).items():
        assert state.startswith("to come") == (identity not in found), f"{identity} is {state!r}"


@pytest.mark.parametrize(("page", "mark"), [(REQUIREMENTS, "req"), (PROMISES, "promise")])
def test_the_column_of_tests_is_what_the_marks_say(page, mark):
    found = marks(mark)
    for identity, cells in entries(page).items():
        assert cells[-1] == cell_of(found.get(identity, [])), f"{identity}: {HINT}"


def test_every_promise_is_proved_by_a_test():
    assert list(entries(PROMISES)) == PROMISE_IDS
    assert set(PROMISE_IDS) - set(marks("promise")) == set()


def test_the_page_of_promises_names_each_once_and_explains_it():
    text = EXPLAINED.read_text()
    assert re.findall(r"^\| \[([GF]\d)\]", text, re.MULTILINE) == PROMISE_IDS
    headings = re.findall(r"^## (G\d): ", text, re.MULTILINE)
    assert headings == [identity for identity in PROMISE_IDS if identity.startswith("G")]


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    write(REQUIREMENTS, marks("req"))
    write(PROMISES, marks("promise"))
