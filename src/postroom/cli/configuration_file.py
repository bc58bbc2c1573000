"""The configuration file: where it is found, and the line of each key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from postroom.errors import ConfigError

FILE = "postroom.toml"
PYPROJECT = "pyproject.toml"


@dataclass(frozen=True)
class Source:
    """The values of a file and the line of each key."""

    path: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)  # URLs with passwords
    lines: Mapping[tuple[str, ...], int] = field(default_factory=dict)

    def where(self, *path: str) -> str:
        line = self.lines.get(path)
        return f"{self.path}:{line}" if line else str(self.path)


def find_file(path: Path | None, folder: Path) -> Source:
    """Read `postroom.toml`, or `[tool.postroom]` of `pyproject.toml`."""
    if path is not None:
        return _parse(path, _table_of(path))
    own = folder / FILE
    if own.is_file():
        return _parse(own, ())
    project = folder / PYPROJECT
    if project.is_file():
        found = _parse(project, ("tool", "postroom"))
        return found if found.values else Source()
    return Source()


def _table_of(path: Path) -> tuple[str, ...]:
    return ("tool", "postroom") if path.name == PYPROJECT else ()


def _parse(path: Path, table: tuple[str, ...]) -> Source:
    try:
        text = path.read_text(encoding="utf-8")
        values: Any = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8") from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # includes numbers and nesting beyond Python's limits
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    for name in table:
        values = values.get(name, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: {'.'.join(table)} is not a table")
    lines = {p[len(table) :]: n for p, n in _lines(text) if p[: len(table)] == table}
    return Source(path, values, lines)


_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"\s*(?:([A-Za-z0-9_-]+)|\"([^\"]*)\"|'([^']*)')\s*=")


def _lines(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the path of each key and its line; tomllib does not report lines."""
    table: tuple[str, ...] = ()
    counted: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = tuple(part.strip().strip("\"'") for part in header[2].split("."))
            yield table, number
            if header[1] == "[[":
                counted[table] = counted.get(table, -1) + 1
                table = (*table, str(counted[table]))
        elif key := _KEY.match(line):
            yield (*table, key[1] or key[2] or key[3] or ""), number
