"""A stored operation as data."""

from __future__ import annotations

import json
from typing import Any

from postroom.admin.texts import instant
from postroom.operation import Operation


def facts(one: Operation) -> dict[str, Any]:
    """Return an operation for `--json`."""
    return {
        "id": one.id,
        "kind": one.kind,
        "state": one.state,
        "who": one.who,
        "created_at": instant(one.created_us),
        "changed_at": instant(one.changed_us),
        "total": one.total,
        "handled": one.handled,
        "failed": one.failed,
        "error": one.error,
        "owner": one.owner,
        "free": one.free,
        "request": _json(one.request),
        "position": _json(one.position),
    }


def _json(text: str | None) -> Any:
    """Return stored JSON; the text itself if it is damaged."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return text
