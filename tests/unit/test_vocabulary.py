"""One word for one thing: words that the field does not use for it do not come back."""

import re
from pathlib import Path

import postroom

SOURCE = Path(postroom.__file__).parent
FILES = sorted(
    path
    for path in SOURCE.rglob("*")
    if path.suffix in {".py", ".sql", ".json", ".toml", ".md", ".typed"}
)
FORBIDDEN = re.compile(
    r"""(?<![a-z])(?:
        offices?|tenders?|errands?|parcels?|turnstiles?|company|companies|deeds?|sentences?
        |lend(?:s|er|ers|ing)?|lent
        |(?<!dead\ )letters?(?!,?\ (?:and\ )?digits)
    )(?![a-z])""",
    re.VERBOSE | re.IGNORECASE,
)


def words_of(text):
    """The text in one line, with identifiers taken apart: DeadLetter and dead_letter alike."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)
    return re.sub(r"[\s_#\"'-]+", " ", apart)


def found_in(text):
    return [match.group() for match in FORBIDDEN.finditer(words_of(text))]


def test_what_is_found():
    assert found_in("a Letter for the office\n    # of the errand_list") == [
        "Letter", "office", "errand",
    ]  # fmt: skip
    assert found_in("class DeadLetter: dead_letters, a dead\n    # letter, indeed") == []
    assert found_in("lower-case letters, digits and underscores") == []


def test_no_file_uses_the_words_of_the_old_metaphor():
    assert len(FILES) > 300
    found = {
        str(path.relative_to(SOURCE)): words
        for path in FILES
        if (words := found_in(path.read_text()))
    }
    assert found == {}


def test_no_module_is_named_after_them():
    names = [path.stem for path in FILES]
    assert [name for name in names if found_in(name) or "people" in name] == []
