"""The receipt of a done event: where its destination put it, as JSON text.

    {"by": "relay-1", "to": "kafka", "topic": "orders", "partition": 3, "offset": 17}

A destination reports the part from `to` on; the relay adds its own name. The text is ASCII, so that
a database of any encoding can store it, and at most MAX_BYTES long.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any

MAX_BYTES = 500
MAX_PLACE_BYTES = 420
"""Of the destination's part; the rest is for the relay's name."""

_MAX_BY_BYTES = 70
_LONGEST_SHOWN = 20  # bytes of a text that is not shortened further


def make(to: str, **facts: str | int | list[str]) -> str:
    """Return a destination's part of a receipt; facts that are too long are shortened."""
    text = _dump({"to": to, **facts})
    return text if len(text) <= MAX_PLACE_BYTES else _dump(_shortened({"to": to, **facts}))


def stamp(by: str, places: Mapping[str, str], ids: Iterable[str]) -> dict[str, str]:
    """Return the receipts of these events, by id, with the name of the relay.

    places      the destination's parts, by id. One that cannot be stored is left out: it must not
                stop its event or any other
    """
    name = _quoted(_cut(by, _MAX_BY_BYTES))
    head, alone = '{"by":' + name + ",", '{"by":' + name + "}"
    if not places:
        return dict.fromkeys(ids, alone)
    if not _are_clean(places.values()):
        places = {name: text for name, text in places.items() if _are_clean([text])}
    get = places.get
    return {name: head + text[1:] if (text := get(name)) else alone for name in ids}


def _are_clean(texts: Collection[str]) -> bool:
    """Return whether all of these can be stored, and look like parts of a receipt.

    One look at all of them: nearly every event has one.
    """
    try:
        joined = "".join(texts)
    except TypeError:  # from a broker of another package
        return False
    return (
        joined.isascii()
        and joined.isprintable()
        and all(text[:2] == '{"' and text[-1] == "}" for text in texts)
        and max(map(len, texts)) <= MAX_PLACE_BYTES
    )


def common(texts: Iterable[str | None]) -> tuple[str, list[str | None]]:
    """Return the beginning that all these receipts share, and the rest of each.

    Most of a receipt is the same in a batch: a statement is shorter that has it once.
    """
    given = list(texts)
    known = [text for text in given if text is not None]
    if not known:
        return "", given
    first, last = min(known), max(known)
    pairs = enumerate(zip(first, last, strict=False))
    size = next((place for place, (one, other) in pairs if one != other), len(first))
    return first[:size], [None if text is None else text[size:] for text in given]


def read(receipt: object) -> dict[str, Any]:
    """Return a stored receipt; empty if there is none, or if it cannot be read."""
    try:
        found = json.loads(receipt) if isinstance(receipt, str) else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(each, str) for each in value)
    return type(value) in (str, int, bool, float)


def _shortened(facts: dict[str, Any]) -> dict[str, Any]:
    """Shorten the longest text, or leave out the last of a list, until all of it fits."""
    while len(_dump(facts)) > MAX_PLACE_BYTES:
        name = max(facts, key=lambda each: len(_dump(facts[each])))
        value = facts[name]
        if isinstance(value, list) and len(value) > 1:
            facts[name] = [*value[: -2 if value[-1] == "…" else -1], "…"]
        elif isinstance(value, str) and len(_quoted(value)) > _LONGEST_SHOWN:
            facts[name] = _cut(value, len(_quoted(value)) * 3 // 4)
        else:
            del facts[name]
    return facts


def _cut(text: str, limit: int) -> str:
    """Return a text whose JSON has at most this many bytes."""
    while (size := len(_quoted(text))) > limit:
        text = text[: min(len(text) - 2, len(text) * limit // size - 2)] + "…"
    return text


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
