"""Masks: values of payloads and headers that no page shows, by field name or by path."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from postroom.errors import ConfigError

MASKED: Final = "•••"
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d{1,9}|\*)\]")
_MOST_LEVELS = 200

Path = tuple[str | int, ...]


class Masks:
    """The names and paths of the settings, applied to decoded values.

    A name masks every field of that name, at any depth, in any case. A path such as
    `$.customer.email`, `$.items[0].sku` or `$.items[*].card` masks one place.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._names = frozenset(one.lower() for one in texts if not one.startswith("$"))
        self._paths = [_read(one) for one in texts if one.startswith("$")]

    def __bool__(self) -> bool:
        return bool(self._names or self._paths)

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return headers with masked values."""
        return {n: MASKED if n.lower() in self._names else v for n, v in headers.items()}

    def payload(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return a payload, as `payload_facts` has it, with masked values.

        A payload that is not a JSON document cannot be masked: with any mask it is not shown.
        """
        if not self:
            return dict(facts)
        if "json" not in facts:
            return {"hidden": "it is not a JSON document, and masks cannot be applied to it"}
        value = self._by_name(facts["json"], _MOST_LEVELS)
        for path in self._paths:
            value = _by_path(value, path)
        return {"json": value}

    def _by_name(self, value: Any, levels: int) -> Any:
        if levels == 0:
            return MASKED
        if isinstance(value, dict):
            return {
                n: MASKED if n.lower() in self._names else self._by_name(v, levels - 1)
                for n, v in value.items()
            }
        if isinstance(value, list):
            return [self._by_name(one, levels - 1) for one in value]
        return value


def _read(text: str) -> Path:
    steps: list[str | int] = []
    at = 1
    for found in _STEP.finditer(text, 1):
        if found.start() != at:
            break
        at = found.end()
        name, place = found.groups()
        steps.append(name if name is not None else place if place == "*" else int(place))
    if at != len(text) or not steps:
        raise ConfigError(
            f"the mask {text!r} is not a path such as $.customer.email or $.items[*].card"
        )
    return tuple(steps)


def _by_path(value: Any, path: Path) -> Any:
    if not path:
        return MASKED
    step, rest = path[0], path[1:]
    if isinstance(value, dict) and isinstance(step, str) and step in value:
        return {n: _by_path(v, rest) if n == step else v for n, v in value.items()}
    if isinstance(value, list) and not (isinstance(step, str) and step != "*"):
        return [_by_path(v, rest) if step in ("*", n) else v for n, v in enumerate(value)]
    return value
