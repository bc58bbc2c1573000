"""Patterns that make sentences hard to read become fewer, never more: see CONTRIBUTING, Language.

`python -m tests.unit.test_language [FOLDER]` prints the counts of a checkout.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("src", "docs", "README.md")
KINDS = (".py", ".sql", ".md")
MARKS = re.compile(r"^[ \t]*(?:#:? ?|-- ?)?", re.MULTILINE)  # of comments

BOUNDS = {
    "What …, as a subject": (r"(?:^|[.!?:;|] +|[\"'(*])What\b(?![^.?!]*\?)", 0),
    "whoever, who, he": (r"\b(?:[Ww]hoever|[Ww]ho|[Hh]e|[Hh]im|[Hh]is)\b", 5),
    "nobody, somebody": (r"\b(?:[Nn]obody|[Ss]omebody)\b", 1),
    "so many, so long, so often": (r"\b[Ss]o\s+(?:many|long|often)\b", 0),
    "is away": (r"\b(?:is|are|was|were|be|been)\s+away\b", 0),
    "bears a repeat": (r"\bbears?\s+(?:a\s+)?repeats?\b", 0),
    "is no, is none": (r"(?<![Tt]here\s)\b(?:is|are)\s+(?:no|none)\b(?!\s+longer)", 0),
    "by itself, of its own": (
        r"\bby\s+(?:itself|themselves|himself)\b|\bof\s+(?:its|their|his)\s+own\b",
        2,
    ),
    "without a word, owes no order, in company": (
        r"\bwithout\s+a\s+word\b|\bowes?\s+no\s+order\b|\bcompany\b|\bin\s+peace\b",
        0,
    ),
    "office, tender, errand, parcel, turnstile, deed, lend": (
        r"\b(?:[Oo]ffice|[Tt]ender|[Ee]rrand|[Pp]arcel|[Tt]urnstile|[Dd]eed|[Ll]end)s?\b",
        0,
    ),
}


def words_of(path: Path) -> str:
    """Return the prose of a file: comments and texts of a module, comments of SQL, pages."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        text = re.sub(r"```.*?```|`[^`]*`", "`…`", text, flags=re.DOTALL)
        return re.sub(r"^ +", "", text, flags=re.MULTILINE)
    if path.suffix == ".sql":
        return MARKS.sub("", "\n".join(re.findall(r"--.*", text)))
    said = [t.value for t in ast.walk(ast.parse(text)) if isinstance(t, ast.Constant)]
    prose = [text for text in said if isinstance(text, str) and " " in text.strip()]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = "\n".join(t.string for t in tokens if t.type == tokenize.COMMENT)
    return MARKS.sub("", "\n\n".join([*prose, comments]))


def text_of(root: Path) -> str:
    found = [path for place in PLACES for path in [root / place, *(root / place).rglob("*")]]
    return "\n\n".join(words_of(path) for path in sorted(found) if path.suffix in KINDS)


def count(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text, re.MULTILINE))


@pytest.fixture(scope="module")
def text() -> str:
    return text_of(ROOT)


@pytest.mark.parametrize("name", BOUNDS)
def test_a_pattern_does_not_become_more_frequent(name, text):
    pattern, bound = BOUNDS[name]
    assert count(pattern, text) <= bound, f"{name!r}: see the word list in CONTRIBUTING"


def test_requirement_ids_are_on_their_own_page():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    named = {
        page.relative_to(ROOT).as_posix()
        for page in pages
        if re.search(r"\bS[1-5]\.\d", page.read_text(encoding="utf-8"))
    }
    assert named <= {"docs/explanation/requirements.md", "CONTRIBUTING.md"}


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("What …, as a subject", "What failed is tried. Then: What fails …", 2),
        ("What …, as a subject", "# What was found\n\nWhat is it? Somewhat what it was.", 0),
        ("so many, so long, so often", "so many, so\nlong; so that many", 2),
        ("by itself, of its own", "by\nitself, of their own, itself", 2),
        ("is no, is none", "It is no text, and is no longer here. There is no cursor.", 1),
        ("whoever, who, he", "whoever, the server", 1),
    ],
)
def test_what_is_counted(name, text, found):
    assert count(BOUNDS[name][0], text) == found


if __name__ == "__main__":
    whole = text_of(Path(sys.argv[1]) if sys.argv[1:] else ROOT)
    for each, (shape, most) in BOUNDS.items():
        print(f"{count(shape, whole):5} {most:5}  {each}")
